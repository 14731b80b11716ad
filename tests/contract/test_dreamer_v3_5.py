"""Dreamer V3.5: stored model states, the start of training, and the optimizers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.rssm import RSSM, ModelState
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.conformance import tracing
from rlcore.conformance.trainings import run
from rlcore.optim.optimizer import Optimizer
from rlcore.train.components import find_all
from rlcore.train.trainer import Trainer
from rlcore.train.warmup import NullRanks
from tests.contract.test_dreamer_v3_latents_probe import draw_batches
from tests.contract.test_registry import SETTINGS
from tests.soaking import heavy


def config_of(**keys: Any) -> RunConfig:
    settings = build(ALGORITHMS["dreamer_v3_5"].Config, SETTINGS["dreamer_v3_5"] | keys, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=12), seed=0)


def test_states_of_the_agent_are_stored_in_small_types() -> None:
    """The state of a row is the carry after the agent has acted there: h rounded to float16, and the classes of z."""
    trainer = Trainer(config_of(), compiled=False)
    agent: Any = trainer.learner.agent
    found: list[Any] = []
    act = agent.act

    def watch(*inputs: Any, **how: Any) -> Any:
        found.append(act(*inputs, **how))
        return found[-1]

    agent.act = watch
    batch = draw_batches(trainer, 1)[0]
    assert {name: x.dtype for name, x in batch.steps.extras.items()} == {"deter": torch.float16, "stoch": torch.uint8}
    row, env = (torch.from_numpy(part) for part in divmod(np.asarray(batch.places), 3))
    deter, stoch = (torch.stack([carry[name] for carry, *_ in found])[row, env] for name in ("deter", "stoch"))
    assert deter.abs().max() > 0
    assert torch.equal(batch.steps.extras["deter"], deter.half())
    assert torch.equal(batch.steps.extras["stoch"].long(), stoch.unflatten(-1, (3, 4)).argmax(-1))


def test_sequences_start_from_stored_states_and_write_back_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    learner: Any = (trainer := Trainer(config_of(), compiled=False)).learner
    world, rssm = learner.agent.world, learner.agent.world.rssm
    batch = draw_batches(trainer, 1)[0]
    batch.steps.is_first[4, 0] = True  # the stored state is not used there
    monkeypatch.setattr(RSSM, "noise", lambda self, rng, *lead: torch.full((*lead, self.latent.variables), 0.5))
    extras = batch.steps.extras
    start = ModelState(extras["deter"][0].float(), torch.eye(4)[extras["stoch"][0].long()].flatten(-2))
    states, action = [start], torch.eye(2)[batch.steps.action[..., 0]]
    rows, count = batch.steps.reward.shape
    with torch.no_grad():
        features = world.encoder(world.encoder.preprocess(batch.steps.obs, 2))
        for t in range(1, rows):
            noise = rssm.noise(None, count)
            states.append(rssm.obs_step(features[t], action[t - 1], batch.steps.is_first[t], noise, states[-1]))
    written: dict[str, Any] = {}
    batch.write_back = written.update
    learner.update(batch, np.random.default_rng(0))
    torch.testing.assert_close(written["deter"], torch.stack([state.deter.half() for state in states]))
    expected = torch.stack([state.stoch.view(count, 3, 4).argmax(-1) for state in states])
    assert torch.equal(written["stoch"].long(), expected)


def test_without_replay_context_nothing_is_stored() -> None:
    trainer = Trainer(config_of(replay_context=0), compiled=False)
    batch = draw_batches(trainer, 1)[0]
    assert not batch.steps.extras
    assert len(batch.steps.reward) == trainer.config.algo.per_rank_sequence_length  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("starts", "first"), [(12, 30), (60, 60)])
def test_policy_acts_before_learning_starts(starts: int, first: int) -> None:
    """The first gradient step needs 10 rows of each of 3 environments, and at least `learning_starts` policy steps."""
    config = config_of(learning_starts=starts, replay_ratio=1.0)
    assert config.algo.random_steps(3) == 0  # pyright: ignore[reportAttributeAccessIssue]
    trainer, steps = Trainer(config, compiled=False), 0
    buffer: Any = trainer.buffer
    while not buffer.taken:
        trainer.collect()
        trainer.update()
        steps += 3
        assert steps < 100
    assert steps == first


def test_gradient_step_trains_world_model_actor_and_critic() -> None:
    """With the learning rate of the warm-up, which is 0 in the first gradient step, nothing changes but the moments."""
    trainer = Trainer(config_of(), compiled=False)
    learner: Any = trainer.learner
    parts = {"world": learner.agent.world, "actor": learner.agent.actor, "critic": learner.behavior.critic}
    batch = draw_batches(trainer, 1)[0]  # includes the first gradient step
    before = {name: [p.detach().clone() for p in part.parameters()] for name, part in parts.items()}
    new = Trainer(config_of(), compiled=False).learner
    for old, part in zip(before.values(), (new.agent.world, new.agent.actor, new.behavior.critic), strict=True):  # pyright: ignore
        for a, b in zip(old, part.parameters(), strict=True):
            assert torch.equal(a, b)
    learner.update(dataclasses.replace(batch), np.random.default_rng(0))
    for name, part in parts.items():
        assert any(not torch.equal(a, b) for a, b in zip(before[name], part.parameters(), strict=True)), name


@heavy
def test_gradients_of_two_ranks_are_compiled() -> None:
    """The sum over ranks of the scale of returns is between the two gradients; compiled code could not contain it."""
    traced: list[Any] = []
    with tracing._graphs(traced):
        learner = run(Trainer(config_of(), compiled=True, ranks=NullRanks(size=2))).learner
    optimizers = find_all(learner, Optimizer).values()
    assert len(optimizers) == 2 and all(optimizer.execution.began for optimizer in optimizers)
    assert [one.what for _, one in traced].count("the gradient") == 2


def test_target_critic_follows_after_the_gradient_step() -> None:
    """With a learning rate above 0, τ = 0.02 of the change of the critic; every second step with the frequency 2."""
    learner: Any = (trainer := Trainer(config_of(optimizer={"eps": 1e-4, "warmup": 0}), compiled=False)).learner
    old = [p.detach().clone() for p in learner.behavior.critic.parameters()]
    draw_batches(trainer, 1)
    slow = [*learner.behavior.target_critic.parameters()]
    for a, b, c in zip(old, learner.behavior.critic.parameters(), slow, strict=True):
        torch.testing.assert_close(c, a + 0.02 * (b - a))
