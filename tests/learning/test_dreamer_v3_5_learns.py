"""Dreamer V3.5 learns to predict counting images, and (in a soak) to balance CartPole."""

from __future__ import annotations

from typing import Any

import pytest

from flows.config.compose import compose
from rlcore.algorithms.dreamer.dreamer_v3_5 import learner as dreamer_v3_5
from tests.learning.assembly import assemble
from tests.learning.counter import learn_to_count
from tests.soaking import heavy, soak

pytestmark = [pytest.mark.slow, heavy]
LAYERS = {"dense_units": 32, "mlp_layers": 1}
IMAGES = LAYERS | {"cnn_channels_multiplier": 4, "cnn_stages": [1, 2]}
SETTINGS: dict[str, Any] = {
    "name": "dreamer_v3_5",
    "total_steps": 10_000,
    "horizon": 3,
    "replay_context": 0,
    "mlp_keys": {"encoder": []},
    "cnn_keys": {"encoder": ["rgb"]},
    "world_model": {
        "discrete_size": 8,
        "stochastic_size": 8,
        "encoder": IMAGES,
        "recurrent_model": {"recurrent_state_size": 32, "hidden_size": 32},
        "transition_model": {"hidden_size": 32, "layers": 1},
        "representation_model": {"hidden_size": 32},
        "observation_model": IMAGES,
        "reward_model": LAYERS | {"bins": 63},
        "discount_model": LAYERS,
    },
    "actor": LAYERS,
    "critic": LAYERS | {"bins": 63},
    "optimizer": {"lr": 3e-3, "warmup": 10},
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=soak) for seed in range(1, 5))])
def test_dreamer_v3_5_model_learns_rewards_and_images(seed: int) -> None:
    learn_to_count(dreamer_v3_5, SETTINGS, seed, side=16)


@soak
@pytest.mark.parametrize("seed", [0, 1])
def test_dreamer_v3_5_balances_cartpole(seed: int) -> None:
    """Best mean of ten episodes in a row (seed 0: 262 after 4,112 steps; random 22)."""
    algo = compose(["exp=dreamer_v3_5_cartpole"])[1]["algo"]
    training = assemble("CartPole-v1", algo, num_envs=1, seed=seed)

    def balanced(training: Any) -> bool:
        last = [episode.ret for episode in training.episodes[-10:]]
        return len(last) == 10 and sum(last) >= 1_500

    assert balanced(training.run(6_000, balanced))
