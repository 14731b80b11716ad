"""SAC learns Pendulum within seconds, and mutants do not.

Greedy returns on Pendulum-v1 after 800 actions with action repeat 4 (10 episodes; seeds 0 to 4):

    right                            -179 -211 -99 -136 -191
    right, critic.loss=categorical   -177 -143  -98 (seeds 0 to 2)
    no bootstrap                    -1475 -1458
    targets never move              -1487 -1453
    policy loss of the wrong sign   -1482 -1484

An entropy of the wrong sign, or an action without its tanh, passes here; the golden values detect it.

docs/results/sac.md has the results of the presets.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.test_sac_golden import MUTANTS
from tests.learning.assembly import assemble
from tests.soaking import heavy, soak

pytestmark = [pytest.mark.slow, heavy]
OPTIMIZER = {"name": "adam", "lr": 3e-3, "eps": 1e-8}
NETWORK = {"hidden_size": 64, "optimizer": OPTIMIZER}
PENDULUM: dict[str, Any] = {
    "name": "sac",
    "total_steps": 3_200,
    "learning_starts": 400,
    "replay_ratio": 0.5,
    "gamma": 0.97,
    "per_rank_batch_size": 64,
    "actor": NETWORK,
    "critic": NETWORK,
    "alpha": {"optimizer": OPTIMIZER},
}


def pendulum(seed: int, **critic: Any) -> float:
    """Return the mean of 10 greedy episodes after training."""
    algo = PENDULUM | {"critic": NETWORK | critic}
    training = assemble("Pendulum-v1", algo, seed=seed, num_envs=1, action_repeat=4)
    return training.run(PENDULUM["total_steps"]).evaluate(episodes=10)["mean"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=soak) for seed in (1, 2, 3, 4))])
def test_sac_learns_pendulum(seed: int) -> None:
    assert pendulum(seed) > -700


@soak
def test_sac_with_categorical_critics_learns_pendulum() -> None:
    assert pendulum(0, loss="categorical") > -700


@pytest.mark.parametrize(
    "mistake",
    [
        "no bootstrap",
        pytest.param("targets never move", marks=soak),
        pytest.param("policy loss of the wrong sign", marks=soak),
    ],
)
def test_sac_mutant_does_not_learn_pendulum(mistake: str) -> None:
    with MUTANTS[mistake].applied():
        assert pendulum(0) < -700
