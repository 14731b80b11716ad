"""PPO against the results of Stable-Baselines3 (fixtures: make_fixtures.py; SB3 itself is not installed)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.functional.returns import gae
from tests.golden import oracle


@pytest.mark.parametrize("variant", oracle.VARIANTS)
@pytest.mark.parametrize("kind", oracle.ACTIONS)
def test_ppo_update_matches_sb3_in_float64(kind: str, variant: str) -> None:
    oracle.check_update(ppo, kind, variant)


@pytest.mark.parametrize("method", ["loop", "log_scan"])
def test_ppo_advantages_with_reset_rows_match_sb3(method: str) -> None:
    oracle.check_advantages(ppo, method)


def test_ppo_update_from_raw_rewards_matches_sb3() -> None:
    oracle.check_rollout(ppo)


def test_ppo_update_uses_annealed_coefficients() -> None:
    oracle.check_annealing(ppo)


def test_ppo_adam_weight_decay_is_loss_penalty() -> None:
    oracle.check_weight_decay(ppo)


def test_gae_matches_sb3_in_float64() -> None:
    data = oracle.fixture("gae")
    done = data["terminated"] | data["truncated"]
    # Row t is the step t → t+1: the value after the last row of an episode is its final value, not the next episode's.
    following = np.concatenate([data["value"][1:], data["last_value"][None]])
    following[:-1] = np.where(done[:-1], data["final_value"][:-1], following[:-1])
    for i, (gamma, gae_lambda) in enumerate(data["pairs"]):
        columns = (data["reward"], gamma * ~data["terminated"], data["value"], following, gae_lambda * ~done)
        found = gae(*map(torch.from_numpy, columns))
        np.testing.assert_allclose(found.numpy(), data[f"advantage/{i}"], rtol=0, atol=1e-12)
