"""Endless batched environments: no ends, resets after a number of rollouts, and runs that are killed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.algorithms.sac import learner as sac
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, EvaluationConfig
from rlcore.config.run import RunConfig
from rlcore.data.steps import n_step, transitions
from rlcore.envs.batched.classic_control import Pendulum
from rlcore.envs.batched.env import BatchedEnv, Transition
from rlcore.envs.batched.vector import BatchedVectorEnv
from rlcore.envs.make import make
from rlcore.envs.seeds import EpisodeSeeds
from rlcore.envs.vector.choose import check_batched_options, make_vector_env
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store.checkpoint import nested_state
from rlcore.train.trainer import Trainer
from rlcore.types import Batch, Episode
from tests.runs import CARD

DUMMY = EnvConfig(id="batched/rl8-discrete_dummy", num_envs=4)
SPEC = EnvSpec("walk", {"state": ArraySpec((1,), "float32")}, ActionSpec("Discrete", (), "int64", (2,), (0,)))


class Walk(BatchedEnv):
    """The observation is the number of steps, the reward 1; an episode terminates after 3 steps if it can."""

    observation_space = spaces.Box(0, 100, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, config: Any) -> Tensor:
        self.state = {"n": self.ones(0.0)}
        return self.state["n"][:, None]

    def step(self, action: Tensor) -> Transition:
        n = self.state["n"] + 1
        self.state = {"n": n}
        return n[:, None], self.ones(), n >= 3


def walk(limit: int | None) -> BatchedVectorEnv:
    return BatchedVectorEnv(Walk(2), SPEC, EpisodeSeeds(0, "env"), limit, {"state": ()}, endless=True)


def play(envs: BatchedVectorEnv, steps: int) -> list[Any]:
    return [envs.step(torch.zeros(2, dtype=torch.int64)) for _ in range(steps)]


def training(resets: int) -> Trainer:
    algo = ppo_config(total_steps=4 * 8 * 6, rollout_steps=8)
    env = EnvConfig(id=DUMMY.id, num_envs=4, horizons_per_env_reset=resets, config={"bounds": {"uniform": [1, 9]}})
    return Trainer(RunConfig(algo=algo, env=env, seed=3), CARD)


def ppo_config(**keys: Any) -> ppo.Config:
    return build(ppo.Config, {"total_steps": 100, "dense_units": 8} | keys, "algo.")


def test_terminated_is_ignored_and_limit_truncates_all() -> None:
    envs = walk(limit=5)
    envs.reset()
    steps = play(envs, 5)
    assert not any(step.terminated.any() for step in steps)
    assert [step.truncated.tolist() for step in steps] == [[False] * 2] * 4 + [[True] * 2]
    assert envs.pop_episodes() == [Episode(0, 5.0, 5), Episode(1, 5.0, 5)]


def test_start_rollout_resets_without_a_step() -> None:
    envs = walk(limit=4)
    envs.reset()
    play(envs, 2)
    assert envs.start_rollout(4) is None
    play(envs, 2)
    first = envs.start_rollout(8)
    assert first is not None and first.is_first.all() and first.obs["state"].tolist() == [[0.0], [0.0]]
    assert play(envs, 1)[0].obs["state"].tolist() == [[1.0], [1.0]]  # no step is lost


def test_without_limit_nothing_ends() -> None:
    envs = walk(limit=None)
    envs.reset()
    assert play(envs, 50)[-1].obs["state"].tolist() == [[50.0], [50.0]]
    assert envs.start_rollout(100) is None and envs.pop_episodes() == []


@pytest.mark.parametrize(
    ("resets", "opened"), [(1, [True] * 5), (2, [True, False, True, False, True]), (-1, [True] + [False] * 4)]
)
def test_rollouts_between_resets(resets: int, opened: list[bool]) -> None:
    trainer, found = training(resets), []
    for _ in opened:
        steps, last = trainer.collector.collect(8)
        found.append(bool(steps.is_first[0].all()))
        assert not steps.is_first[1:].any()
        batch = transitions(Batch(steps, last, 0))
        assert batch.weight.all() and not batch.terminated.any()  # each row counts, and the last value is bootstrapped
    assert found == opened
    lengths = [episode.length for episode in trainer.envs.pop_episodes()]
    assert lengths == ([] if resets < 0 else [8 * resets] * (4 * (len(opened) // resets)))


@pytest.mark.parametrize("resets", [1, 3, -1])
@pytest.mark.parametrize("stop", [1, 2])
def test_resumed_training_has_same_bits(resets: int, stop: int, tmp_path: Path) -> None:
    whole, first, second = (training(resets) for _ in range(3))
    for _ in whole:
        pass
    for iteration, _ in enumerate(first, 1):
        if iteration == stop:
            break
    second.load(first.save(tmp_path))
    for _ in second:
        pass
    assert nested_state.encode(second.state_dict()) == nested_state.encode(whole.state_dict())


def test_sac_uses_no_transition_across_resets() -> None:
    env = EnvConfig(id="batched/Pendulum-v1", num_envs=2, endless=True, horizons_per_env_reset=5)
    keys = {"total_steps": 80, "learning_starts": 40, "hidden_size": 4, "per_rank_batch_size": 64}
    trainer = Trainer(RunConfig(algo=build(sac.Config, keys, "algo."), env=env), CARD)
    batches, update = list[Batch](), trainer.learner.update
    trainer.learner.update = lambda batch, rng: (batches.append(batch), update(batch, rng))[1]
    assert [episode.length for iteration in trainer for episode in iteration.episodes] == [5] * 16
    samples = [n_step(batch, 0.99) for batch in batches]
    obs, after, action = (
        torch.cat(parts)
        for parts in zip(*((s.obs["state"], s.next_obs["state"], s.action) for s in samples), strict=True)
    )
    envs = Pendulum(len(obs))
    envs.state = {"angle": torch.atan2(obs[:, 1], obs[:, 0]), "speed": obs[:, 2]}
    expected, *_ = envs.step(trainer.learner.agent.to_env(action))
    assert isinstance(expected, Tensor)
    assert (after - expected).abs().max() < 1e-6  # the samples include no step from the end of an episode to a start


def test_class_attribute_and_key_choose_mode() -> None:
    for key, endless in ((None, True), (False, False), (True, True)):
        with closing(make(EnvConfig(id="batched/rl8-cartpole", endless=key))) as env:
            view: Any = env.unwrapped
            assert view.endless is endless
    with closing(make(EnvConfig(id="batched/CartPole-v1", endless=True))) as env:
        env.reset(seed=0)
        assert [env.step(1)[2:4] for _ in range(500)] == [(False, False)] * 499 + [(False, True)]


@pytest.mark.parametrize(("own", "limit"), [(None, 128), (50, 50)])
def test_evaluation_plays_stated_steps(own: int | None, limit: int) -> None:
    env = EnvConfig(id="batched/rl8-cartpole", num_envs=2)
    config = RunConfig(algo=ppo_config(), env=env, evaluation=EvaluationConfig(max_episode_steps=own))
    result = Trainer(config).evaluate(episodes=3)
    assert result["mean_length"] == limit


def test_limit_of_endless_evaluation_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    algo, env = ppo_config(), EnvConfig(id="batched/rl8-discrete_dummy", num_envs=2)
    config = RunConfig(algo=algo, env=env, evaluation=EvaluationConfig(max_episode_steps=20))
    assert Trainer(config).evaluate(episodes=3)["cut"] == 3
    assert "truncated" not in caplog.text


def test_evaluation_does_not_disturb_training() -> None:
    quiet, evaluated = training(2), training(2)
    for one in (quiet, evaluated):
        for _ in zip(range(3), one, strict=False):
            if one is evaluated:
                one.evaluate(episodes=2)
    assert nested_state.encode(quiet.state_dict()) == nested_state.encode(evaluated.state_dict())


@pytest.mark.parametrize(
    ("env", "algo", "message"),
    [
        (
            {"id": "batched/rl8-cartpole", "horizons_per_env_reset": 3},
            {"rollout_steps": 64},
            "longer than the limit of 128",
        ),
        ({"id": "batched/rl8-cartpole", "max_episode_steps": 32}, {"rollout_steps": 64}, "longer than the limit of 32"),
        ({"id": "batched/CartPole-v1", "horizons_per_env_reset": 2}, {}, "set env.endless=true"),
    ],
)
def test_invalid_resets_are_refused(env: dict[str, Any], algo: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_batched_options(RunConfig(algo=ppo_config(**algo), env=EnvConfig(**env)))


def test_zero_resets_are_refused() -> None:
    with pytest.raises(UserError, match="env.horizons_per_env_reset=0: must be 1 or more, or negative"):
        EnvConfig(id="batched/rl8-cartpole", horizons_per_env_reset=0).check("env.")


def test_reset_after_every_step_is_refused() -> None:
    config = RunConfig(algo=build(sac.Config, {"total_steps": 1000}, "algo."), env=EnvConfig(id="batched/rl8-pendulum"))
    with pytest.raises(UserError, match="sac collects 1 step per rollout"):
        check_batched_options(config)


def test_never_reset_ignores_limit() -> None:
    env = EnvConfig(id="batched/rl8-cartpole", horizons_per_env_reset=-1)
    check_batched_options(RunConfig(algo=ppo_config(), env=env))
    envs = make_vector_env(env, num_envs=2, seed=0, rollout_steps=64)
    envs.reset()
    assert not any(envs.step(torch.ones(2, dtype=torch.int64)).truncated.any() for _ in range(200))


def test_view_has_numbers_of_its_episode() -> None:
    with closing(make(EnvConfig(id=DUMMY.id, config={"bounds": {"uniform": [1, 9]}}))) as env:
        starts = [env.reset(seed=seed)[0]["state"][0] for seed in (0, 1, 0)]
    assert starts[0] == starts[2] != starts[1] and np.abs(starts).max() < 9
