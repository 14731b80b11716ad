"""A2C against Stable-Baselines3's own numbers (fixtures: make_a2c_fixtures.py), and against PPO."""

from __future__ import annotations

import pytest

from rlcore.algorithms.on_policy.a2c import learner as a2c
from tests.golden import a2c_oracle
from tests.golden.oracle import ACTIONS


@pytest.mark.parametrize("variant", a2c_oracle.VARIANTS)
@pytest.mark.parametrize("kind", ACTIONS)
def test_updates_equal_the_oracles_in_float64(kind: str, variant: str) -> None:
    a2c_oracle.check_update(a2c, kind, variant)


@pytest.mark.parametrize("batch_size", [199, 64, 1])
def test_updates_in_parts_equal_the_oracles_of_the_whole(batch_size: int) -> None:
    a2c_oracle.check_update(a2c, "discrete", "base", batch_size)


def test_update_from_raw_rewards_equals_the_oracles() -> None:
    a2c_oracle.check_rollout(a2c)


def test_annealed_coefficients_reach_the_update() -> None:
    a2c_oracle.check_annealing(a2c)
