"""PPO against Stable-Baselines3's own numbers (fixtures made by make_fixtures.py; nothing of it is installed here)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.functional.returns import gae
from tests.golden import oracle


@pytest.mark.parametrize("variant", oracle.VARIANTS)
@pytest.mark.parametrize("kind", oracle.ACTIONS)
def test_update_equals_the_oracles_in_float64(kind: str, variant: str) -> None:
    oracle.check_update(ppo, kind, variant)


@pytest.mark.parametrize("method", ["loop", "log_scan"])
def test_advantages_of_a_rollout_with_reset_rows_equal_the_oracles_without(method: str) -> None:
    oracle.check_advantages(ppo, method)


def test_update_from_raw_rewards_equals_the_oracles() -> None:
    oracle.check_rollout(ppo)


def test_annealed_coefficients_reach_the_update() -> None:
    oracle.check_annealing(ppo)


def test_weight_decay_of_adam_is_a_penalty_on_the_loss() -> None:
    oracle.check_weight_decay(ppo)


def test_gae_alone_equals_the_oracles_in_float64() -> None:
    data = oracle.fixture("gae")
    done = data["terminated"] | data["truncated"]
    # Row t is the step t → t+1: what follows the last observation of an episode is its own value, never the next one's.
    following = np.concatenate([data["value"][1:], data["last_value"][None]])
    following[:-1] = np.where(done[:-1], data["final_value"][:-1], following[:-1])
    for i, (gamma, gae_lambda) in enumerate(data["pairs"]):
        columns = (data["reward"], gamma * ~data["terminated"], data["value"], following, gae_lambda * ~done)
        found = gae(*map(torch.from_numpy, columns))
        np.testing.assert_allclose(found.numpy(), data[f"advantage/{i}"], rtol=0, atol=1e-12)
