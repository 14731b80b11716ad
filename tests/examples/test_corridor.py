"""The environment in examples/: it passes Gymnasium's check, has tier snapshot, and PPO solves it."""

from __future__ import annotations

import importlib
import sys

import pytest
from gymnasium.utils.env_checker import check_env

from flows.config.compose import compose
from rlcore.train.trainer import Trainer
from tests import processes

EXAMPLE = processes.ROOT / "examples/corridor"


pytestmark = pytest.mark.usefixtures("folder")


def test_corridor_passes_gymnasium_check() -> None:
    sys.path.append(str(EXAMPLE))
    env = importlib.import_module("corridor").Corridor(length=5, render_mode="rgb_array")
    check_env(env, skip_render_check=True)  # that check needs a registered id
    assert env.render().shape == (32, 160, 3)


def test_ppo_solves_corridor() -> None:
    training = Trainer(compose(["exp=ppo_corridor", "plugins=[corridor]", "algo.total_steps=4096"])[0])
    assert training.card["tier"] == "snapshot"
    for _ in training:
        pass
    # At most seven steps of -0.01 each; the mean return of the random policy is about 0.3.
    assert training.evaluate(episodes=20)["mean"] > 0.93
