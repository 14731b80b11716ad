"""PPO learns two small tasks within seconds, and mutants do not.

Returns found at these budgets (mean of the last episodes of training; the seed in the order 0 to 5):

    CartPole-v1, last 20 episodes of 32 000 steps           FrozenLake-v1, not slippery, last 100 of 16 000 steps
    right                      500 454 500 500 500 500      right               1.00 0.99 1.00 1.00 1.00 0.98
    termination bootstrapped   451  16  11  10  10  12      reward a row late   0.14 0.04 0.00 0.03 0.00 0.02
    next value left out         44   9  34   9  10 271
    advantage of wrong sign      9   9   9  10 (20 000 steps)

On a processor with different rounding, right is 168 500 442 407; therefore the better of two seeds counts.

CartPole pays 1 in every step, so a shifted reward passes (462 to 500); FrozenLake pays once, at the end, and passes
with a bootstrapped termination too (0.99 to 1.00). Each task detects what the other does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.golden.test_ppo_golden import MUTANTS
from tests.learning.assembly import assemble
from tests.soaking import always, heavy, soak

pytestmark = [pytest.mark.slow, heavy]

SHARED = {
    "name": "ppo",
    "rollout_steps": 64,
    "per_rank_batch_size": 128,
    "update_epochs": 6,
    "gae_lambda": 0.9,
    "normalize_advantages": True,
    "anneal_lr": True,
    "max_grad_norm": 0.5,
    "vf_coef": 0.5,
    "encoder": {"mlp_layers": 0},
}
NETWORK = {"dense_units": 64, "mlp_layers": 2, "ortho_init": True}
CARTPOLE: dict[str, Any] = SHARED | {
    "total_steps": 32_000,
    "gamma": 0.98,
    "actor": NETWORK,
    "critic": NETWORK,
    "optimizer": {"lr": 2e-3, "eps": 1e-5},
}
LAKE: dict[str, Any] = SHARED | {
    "total_steps": 16_000,
    "gamma": 0.95,
    "ent_coef": 0.02,
    "actor": {"mlp_layers": 0},
    "critic": {"mlp_layers": 0},
    "optimizer": {"lr": 3e-2, "eps": 1e-5},
}


def cartpole(seed: int) -> float:
    """Return the mean of the last 20 training episodes."""
    training = assemble("CartPole-v1", CARTPOLE, seed=seed, num_envs=8)
    return float(np.mean([e.ret for e in training.run(CARTPOLE["total_steps"]).episodes[-20:]]))


def lake(seed: int = 0) -> float:
    """Return the mean of the last 100 training episodes, the share that reached the goal."""
    training = assemble("FrozenLake-v1", LAKE, seed=seed, num_envs=8, wrapper={"is_slippery": False})
    return float(np.mean([e.ret for e in training.run(LAKE["total_steps"]).episodes[-100:]]))


@pytest.mark.parametrize("seeds", [(0, 1), pytest.param((2, 3), marks=soak)])
def test_ppo_learns_cartpole(seeds: tuple[int, int]) -> None:
    assert any(cartpole(seed) > 430 for seed in seeds)


def test_ppo_does_not_learn_if_termination_bootstraps() -> None:
    with MUTANTS["termination as truncation"].applied():
        assert cartpole(1) < 430


@always
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=soak), pytest.param(2, marks=soak)])
def test_ppo_learns_frozen_lake(seed: int) -> None:
    assert lake(seed) > 0.9


@pytest.mark.parametrize("mistake", [pytest.param("advantage of the wrong sign", marks=soak), "reward one row late"])
def test_ppo_mutant_does_not_learn_frozen_lake(mistake: str) -> None:
    with MUTANTS[mistake].applied():
        assert lake() < 0.5
