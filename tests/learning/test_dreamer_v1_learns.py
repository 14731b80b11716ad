"""Dreamer V1 learns to predict counting images, and (in a soak) to balance CartPole."""

from __future__ import annotations

from typing import Any

import pytest

from flows.config.compose import compose
from rlcore.algorithms.dreamer.dreamer_v1 import learner as dreamer_v1
from tests.golden.test_dreamer_v1_golden import MUTANTS
from tests.learning.assembly import assemble
from tests.learning.counter import learn_to_count
from tests.soaking import heavy, soak

pytestmark = [pytest.mark.slow, heavy]
LAYERS = {"dense_units": 32, "mlp_layers": 1}
SETTINGS: dict[str, Any] = {
    "name": "dreamer_v1",
    "total_steps": 10_000,
    "horizon": 3,
    "mlp_keys": {"encoder": []},
    "cnn_keys": {"encoder": ["rgb"]},
    "world_model": {
        "use_continues": True,
        "kl_free_nats": 1.0,
        "stochastic_size": 8,
        "encoder": LAYERS | {"cnn_channels_multiplier": 2},
        "recurrent_model": {"recurrent_state_size": 32},
        "transition_model": {"hidden_size": 32},
        "representation_model": {"hidden_size": 32},
        "observation_model": LAYERS | {"cnn_channels_multiplier": 2},
        "reward_model": LAYERS,
        "discount_model": LAYERS,
        "optimizer": {"lr": 6e-3, "eps": 1e-7},
    },
    "actor": LAYERS,
    "critic": LAYERS,
}


def test_dreamer_v1_model_learns_rewards_and_images() -> None:
    """Passes for four of the seeds 0 to 4; the third one misses the reward."""
    learn_to_count(dreamer_v1, SETTINGS, side=64)


@soak
@pytest.mark.parametrize("mistake", ["reward one step early", "ends taught as going on"])
def test_dreamer_v1_mutant_does_not_learn(mistake: str) -> None:
    with MUTANTS[mistake].applied(), pytest.raises(AssertionError):
        learn_to_count(dreamer_v1, SETTINGS, side=64)


@soak
@pytest.mark.parametrize("seed", [0, 1])
def test_dreamer_v1_balances_cartpole(seed: int) -> None:
    """Mean of ten episodes in a row (seed 0: 227 within 3,500 steps; random 22), by `exp=dreamer_v1_cartpole`."""
    algo = compose(["exp=dreamer_v1_cartpole"])[1]["algo"]
    training = assemble("CartPole-v1", algo, num_envs=1, seed=seed)

    def balanced(training: Any) -> bool:
        last = [episode.ret for episode in training.episodes[-10:]]
        return len(last) == 10 and sum(last) >= 1_000

    assert balanced(training.run(6_000, balanced))
