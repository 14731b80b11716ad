"""A2C against the results of Stable-Baselines3 (fixtures: make_a2c_fixtures.py)."""

from __future__ import annotations

import pytest

from rlcore.algorithms.on_policy.a2c import learner as a2c
from tests.golden import a2c_oracle
from tests.golden.oracle import ACTIONS


@pytest.mark.parametrize("variant", a2c_oracle.VARIANTS)
@pytest.mark.parametrize("kind", ACTIONS)
def test_a2c_update_matches_sb3_in_float64(kind: str, variant: str) -> None:
    a2c_oracle.check_update(a2c, kind, variant)


@pytest.mark.parametrize("batch_size", [199, 64, 1])
def test_a2c_update_in_parts_matches_sb3(batch_size: int) -> None:
    a2c_oracle.check_update(a2c, "discrete", "base", batch_size)


def test_a2c_update_from_raw_rewards_matches_sb3() -> None:
    a2c_oracle.check_rollout(a2c)


def test_a2c_update_uses_annealed_coefficients() -> None:
    a2c_oracle.check_annealing(a2c)
