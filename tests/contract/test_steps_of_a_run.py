"""A run takes as many iterations and gradient steps as SheepRL 0.8.4 with the same settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pytest import approx
from torch.utils.data import BatchSampler, RandomSampler

from rlcore.config.run import RunConfig
from rlcore.conformance.several_ranks import on_two_ranks
from rlcore.conformance.trainings import fresh
from rlcore.train.arithmetic import count
from rlcore.train.trainer import Trainer
from tests.contract.test_registry import SETTINGS
from tests.learning.assembly import assemble
from tests.soaking import always, heavy

pytestmark = heavy


def sheeprl(algo: dict[str, Any], envs: int, ranks: int) -> tuple[int, int]:
    """Iterations and optimizer steps of each rank, as in `main` and `train` of SheepRL's ppo.py and a2c.py."""
    iterations = algo["total_steps"] // (envs * algo["rollout_steps"] * ranks)
    if algo["name"] == "a2c":  # it sums the gradients of all minibatches
        return iterations, iterations
    rows = RandomSampler(range(envs * algo["rollout_steps"]))
    minibatches = BatchSampler(rows, batch_size=algo["per_rank_batch_size"], drop_last=False)
    return iterations, iterations * algo["update_epochs"] * len(minibatches)


def counted(config: RunConfig, training: Trainer) -> int:
    """Gradient steps of the run as estimated by `algo.compile=auto` from the first iterations."""
    found = count(config, training.envs.spec)
    assert found is not None
    return found.steps


@always
@pytest.mark.parametrize("algo", ["a2c", "ppo"])  # for recurrent PPO see test_ppo_recurrent.py
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("total", "rollout", "batch"),
    # 3 environments: whole iterations, a remainder, a last minibatch of one row, fewer minibatches than reset rows
    [(288, 24, 18), (431, 24, 20), (300, 8, 23), (600, 32, 4)],
)
def test_on_policy_step_counts_match_sheeprl(algo: str, ranks: int, total: int, rollout: int, batch: int) -> None:
    chosen = SETTINGS[algo] | {"total_steps": total, "rollout_steps": rollout}
    chosen |= {"per_rank_batch_size": batch} if algo == "ppo" else {}
    one = assemble("CartPole-v1", chosen, num_envs=3, max_episode_steps=12)
    wide = dataclasses.replace(one.config, fabric=dataclasses.replace(one.config.fabric, devices=ranks))

    def trained(**how: Any) -> tuple[int, int]:
        training = fresh(one.config, **how)
        training.config = wide  # set afterwards, because ranks as threads need no Fabric with several devices
        return len(list(training)), training.learner.updates

    done = [trained()] if ranks == 1 else on_two_ranks(trained)
    assert done == [sheeprl(chosen, 3, ranks)] * ranks
    assert counted(wide, one) == approx(sheeprl(chosen, 3, ranks)[1], abs=2)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("total", "starts", "ratio", "pretrain", "every"),
    # 3 environments: no random step, fewer than a row, a remainder, a fractional ratio, pretraining steps,
    # rare trainings whose last is due before the end, rare trainings whose first is at the end,
    # a ratio with which most rows cause no step
    [
        (60, 0, 1.0, 0, None),
        (60, 2, 1.0, 0, None),
        (61, 20, 1.0, 0, None),
        (90, 30, 0.3, 0, None),
        (45, 12, 2.5, 7, None),
        (90, 30, 0.3, 0, 20),
        (45, 12, 2.5, 7, 100),
        (900, 30, 0.02, 0, None),
    ],
)
def test_sac_step_counts_match_sheeprl(
    ranks: int, total: int, starts: int, ratio: float, pretrain: int, every: int | None
) -> None:
    changes = {"total_steps": total, "learning_starts": starts, "replay_ratio": ratio, "per_rank_batch_size": 4}
    chosen = SETTINGS["sac"] | changes | {"per_rank_pretrain_steps": pretrain, "n_step": 1, "train_every": every}
    one = assemble("Pendulum-v1", chosen, num_envs=3, max_episode_steps=12)
    wide = dataclasses.replace(one.config, fabric=dataclasses.replace(one.config.fabric, devices=ranks))

    def trained(**how: Any) -> tuple[int, int]:
        training = fresh(one.config, **how)
        training.config = wide
        return len(list(training)), training.learner.updates

    # As in `off_policy_schedule` and `main` of SheepRL's sac.py: the last random iteration counts.
    row = 3 * ranks
    iterations, first = total // row, max(starts // row, 1)
    steps = int(round((iterations - first + 1) * 3 * ratio, 9)) + pretrain
    done = [trained()] if ranks == 1 else on_two_ranks(trained)
    assert done == [(iterations, steps)] * ranks
    assert counted(wide, one) == steps
