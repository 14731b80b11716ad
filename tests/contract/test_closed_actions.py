"""Elements of an action with a single value (low == high): sent as that value, and not learned."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlcore.algorithms import ALGORITHMS
from tests.contract.test_registry import SETTINGS
from tests.learning.assembly import assemble
from tests.rlcore.envs import probe_envs  # noqa: F401 - registers Probe/...


@pytest.mark.parametrize(
    ("algo", "keys"),
    [
        *((algo, {}) for algo in ALGORITHMS),
        *((algo, {"distribution": "tanh_normal"}) for algo in ("ppo", "a2c", "ppo_recurrent", "dreamer_v2")),
        ("sac", {"normalize_actions": True}),
        ("dreamer_v1", {"distribution": "normal"}),
    ],
)
def test_training_with_closed_actions_stays_finite(algo: str, keys: dict[str, Any]) -> None:
    training = assemble("Probe/Closed-v0", SETTINGS[algo], num_envs=3, **keys)
    training.run(120)  # the environment asserts that each action lies in its space
    losses = [value for update in training.metrics for value in update.values()]
    assert losses and all(map(math.isfinite, losses))
    assert all(parameter.isfinite().all() for parameter in training.learner.agent.parameters())
    training.close()
