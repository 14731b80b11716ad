"""The losses of recurrent PPO use for each row the carry that the agent had when it acted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.data.minibatches import split
from rlcore.types import Batch
from tests.contract.test_registry import SETTINGS
from tests.golden.mutants import changed, swap
from tests.learning.assembly import assemble

SMALL = SETTINGS["ppo_recurrent"]
PICTURES = {"cnn_keys": {"encoder": ["rgb"]}, "encoder": SMALL["encoder"] | {"cnn_features_dim": 8}}
GRU = {"rnn": {"cell": "gru", "lstm": {"hidden_size": 8}, "pre_rnn_mlp": {"apply": True}}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "discrete": ("CartPole-v1", {}),
    "continuous": ("Pendulum-v1", {}),
    "gru": ("CartPole-v1", GRU),
    "state resets": ("CartPole-v1", {"per_rank_sequence_length": 4, "sequences_per_state_reset": 2}),
    "whole rollouts": ("CartPole-v1", {"per_rank_sequence_length": None}),
    "multi-discrete, pictures": ("multidiscrete_dummy", PICTURES),
}


def rollouts(kind: str, count: int = 2) -> Iterator[tuple[Any, Batch]]:
    """Rollouts, each collected after an update on the previous one."""
    env_id, changes = KINDS[kind]
    training: Any = assemble(env_id, SMALL | changes, num_envs=3, max_episode_steps=9)
    for _ in range(count):
        batch = Batch(*training.collector.collect(24), training.policy_steps)
        yield training, batch
        training.learner.update(batch, np.random.default_rng(0))


def first_epoch(learner: Any, batch: Batch) -> Iterator[Any]:
    """Minibatches of the first epoch of an update."""
    rollout = learner.samples(batch)
    rows, weight = learner.draw(rollout.weight.unflatten(0, batch.steps.reward.shape), np.random.default_rng(1))
    for (minibatch,) in split(rollout.at(rows[0], rollout.advantage[rows[0]], weight[0]), 1):
        yield minibatch


@torch.no_grad()
def distances(agent: Any, minibatches: Iterator[Any]) -> tuple[Tensor, int]:
    """|ratio - 1| of every row with weight, and how many of these rows start an episode within a sequence."""
    found, inside = list[Tensor](), 0
    for batch in minibatches:
        policy, _ = agent(batch.obs)
        ratio = (policy.logprob(batch.action) - batch.old_logprob).exp()
        found.append((ratio - 1).abs()[batch.weight > 0])
        inside += int((batch.obs.is_first & (batch.weight > 0))[len(batch.obs.carry["h"]) :].sum())
    return torch.cat(found), inside


@pytest.mark.parametrize("kind", KINDS)
def test_ppo_recurrent_first_ratio_is_one(kind: str) -> None:
    for training, batch in rollouts(kind):
        gaps, inside = distances(training.learner.agent, first_epoch(training.learner, batch))
        assert gaps.max() < 5e-6  # rounding errors; mutants are above 1e-4
        assert len(gaps) == training.learner.samples(batch).weight.sum() < batch.steps.reward.numel()  # each row once
        assert inside >= 3


CELL, AT, DRAW, UNROLL = "Cell._step", "SequenceRows.at", "ppo_recurrent.Learner.draw", "ppo_recurrent.Agent.unroll"
MISTAKES: dict[str, tuple[str, Callable[..., Any]]] = {
    "no reset within a sequence": (CELL, swap("A.masked_fill(B, 0)", "A")),
    "sequences begin empty": (AT, swap("A[first]", "torch.zeros_like(A[first])")),
    "sequences begin with the carry of their second row": (AT, swap("A[:, 0]", "A[:, 1]")),
    "environments before time": (DRAW, swap("cut[chosen].transpose(2, 3)", "cut[chosen]")),
    "no action before": (UNROLL, swap("A.masked_fill(B, 0)", "0 * A.masked_fill(B, 0)")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_ppo_recurrent_first_ratio_rejects_mutants(mistake: str) -> None:
    """Only the losses are wrong: the rollout was collected by correct code."""
    for training, batch in rollouts("discrete", 1):
        learner = training.learner
        with changed(*MISTAKES[mistake]):
            gaps, _ = distances(learner.agent, first_epoch(learner, batch))
        assert gaps.max() > 1e-4


def test_ppo_recurrent_carry_continues_across_rollouts() -> None:
    (_, first), (_, second) = rollouts("discrete")
    assert all(torch.equal(first.last.carry[name], second.steps.carry[name]) for name in ("h", "c"))
    assert all(torch.equal(part, second.steps.extras[name][0]) for name, part in second.steps.carry.items())


def test_reset_recurrent_state_on_done_false_keeps_carry() -> None:
    kept = assemble("CartPole-v1", SMALL | {"reset_recurrent_state_on_done": False}, num_envs=1).learner.agent
    obs = {"state": torch.ones(1, 4), "past_action": torch.ones(1, 1, 1, dtype=torch.int64)}
    opens, full = torch.ones(1, dtype=torch.bool), {name: part + 1 for name, part in kept.initial(1).items()}
    answers = [kept.act(carry, obs, opens, None, True)[0]["h"] for carry in (full, kept.initial(1))]
    assert not torch.equal(*answers)


def test_recurrent_state_is_reset_after_sequences_and_at_episode_start() -> None:
    settings = SMALL | {"per_rank_sequence_length": 2, "sequences_per_state_reset": 2}  # 4 rows
    agent = assemble("CartPole-v1", settings, num_envs=1).learner.agent
    obs = {"state": torch.ones(1, 4), "past_action": torch.ones(1, 1, 1, dtype=torch.int64)}
    carry, fresh, seen = agent.initial(1), list[bool](), list[int]()
    blank, _, _ = agent.act(carry, obs, torch.zeros(1, dtype=torch.bool), None, True)
    opened, _, _ = agent.act(carry, obs, torch.ones(1, dtype=torch.bool), None, True)
    for row in range(12):
        carry, _, extras = agent.act(carry, obs, torch.tensor([row == 6]), None, True)
        fresh.append(torch.equal(carry["h"], (opened if row == 6 else blank)["h"]))
        seen.append(int(extras["since_reset"]))
    assert fresh == [row in (0, 4, 6, 10) for row in range(12)]
    assert seen == [0, 1, 2, 3, 0, 1, 2, 1, 2, 3, 0, 1]


def test_ppo_recurrent_minibatches_hold_whole_sequences() -> None:
    for training, batch in rollouts("discrete", 1):
        rows, weight = training.learner.draw(
            training.learner.samples(batch).weight.view(24, 3), np.random.default_rng()
        )
        assert rows.shape == weight.shape == (2, 2, 36)  # 4 · 3 sequences of 6 rows, in halves
        assert (rows.unflatten(2, (6, 6)).diff(dim=2) == 3).all()  # the next row of the same of 3 environments
