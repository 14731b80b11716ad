"""A player in another process, written outside of rlcore (tests/probes/player_process.py)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from rlcore.errors import RunError
from rlcore.functional.tree import leaves
from rlcore.store.checkpoint import nested_state
from rlcore.train.player import Player, flat_weights, make_behavior_policy
from rlcore.train.trainer import Trainer
from rlcore.types import SingleProcess
from tests.contract.cases import config
from tests.probes.player_process import DecoupledTrainer
from tests.soaking import heavy

ITERATIONS = {"ppo": 3, "sac": 40, "dreamer_v1": 30, "dreamer_v3": 30}


@pytest.mark.parametrize(
    ("algo", "env_id"),
    [
        ("ppo", "CartPole-v1"),
        pytest.param("sac", "Pendulum-v1", marks=heavy),
        pytest.param("dreamer_v1", "CartPole-v1", marks=heavy),
        pytest.param("dreamer_v3", "CartPole-v1", marks=heavy),
    ],
)
def test_player_process_gives_bits_of_one_process(algo: str, env_id: str) -> None:
    one = Trainer(config(algo, env_id), compiled=False)
    two = DecoupledTrainer(one.config, one.card)
    for _ in range(ITERATIONS[algo]):
        one.collect()
        one.update()
        two.iterate()
    two.close()
    one.close()
    assert one.learner.updates == two.learner.updates > 0 and two.versions[-1] > 0
    assert one.policy_steps == two.policy_steps
    states = [nested_state.encode(learner.state_dict()) for learner in (one.learner, two.learner)]
    assert states[0] == states[1]


def test_load_weights_refuses_policy_of_other_size() -> None:
    trainer: Any = Trainer(config("ppo", "CartPole-v1"), compiled=False)
    other: Any = Trainer(config("ppo", "Pendulum-v1"), compiled=False)
    player = Player(trainer.context, trainer.envs)
    weights = flat_weights(trainer.learner.behavior_policy)
    assert weights.dtype == torch.uint8
    player.load_weights(7, weights)
    assert player.version == 7 and torch.equal(flat_weights(player.policy), weights)
    with pytest.raises(
        RunError, match=r"^the weights do not fit this policy: .*; use the same config in both processes$"
    ):
        player.load_weights(8, flat_weights(other.learner.behavior_policy))
    assert player.version == 7


@pytest.mark.parametrize("algo", ["ppo", "dreamer_v1"])
def test_make_behavior_policy_has_form_of_learners_policy(algo: str) -> None:
    trainer: Any = Trainer(config(algo, "CartPole-v1"), compiled=False)
    policy, theirs = make_behavior_policy(trainer.context), trainer.learner.behavior_policy
    assert type(policy) is type(theirs)
    assert len(flat_weights(policy)) == len(flat_weights(theirs))


def test_player_collect_returns_copies() -> None:
    """The collector writes every rollout into the same memory."""
    trainer = Trainer(config("ppo", "CartPole-v1"), compiled=False)
    player = Player(trainer.context, trainer.envs)
    steps, last = player.collect(4)
    kept = [tensor.clone() for tensor in leaves((steps, last))]
    player.collect(4)
    assert all(torch.equal(before, now) for before, now in zip(kept, leaves((steps, last)), strict=True))
    borrowed, _ = player.collector.collect(4)
    first = borrowed.obs["state"].clone()
    player.collect(4)
    assert not torch.equal(borrowed.obs["state"], first)


class RankOfTwo(SingleProcess):
    """Rank 0 of two ranks; the other one has the same values."""

    size = 2

    def __init__(self, connected: bool) -> None:
        self.connected = connected

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        assert self.connected, "waits forever for the other rank"
        return value * 2


def test_player_collects_without_other_ranks() -> None:
    trainer = Trainer(config("ppo", "CartPole-v1"), compiled=False)
    player = Player(dataclasses.replace(trainer.context, ranks=RankOfTwo(connected=False)), trainer.envs)
    player.collect(4)
    assert player.collector.policy_steps == 4 * trainer.context.num_envs


def test_trainer_counts_steps_of_all_ranks() -> None:
    chosen = config("ppo", "CartPole-v1")
    one, two = Trainer(chosen, compiled=False), Trainer(chosen, compiled=False, ranks=RankOfTwo(connected=True))
    for _ in range(2):
        for trainer in (one, two):
            trainer.collect()
            trainer.take_gradient_steps()
    assert two.env_steps == 2 * one.env_steps < 2 * one.policy_steps == two.policy_steps
