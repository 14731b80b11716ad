"""A rollout and an update in batched environments read no value from the device, so that a GPU never waits for Python.

The device is torch's "meta", whose tensors have no values: reading one raises an error. A gradient step on such tensors
is tested in test_another_device.py, so it is replaced here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import EnvConfig
from rlcore.envs.batched.classic_control import Pendulum
from rlcore.envs.batched.vector import BatchedVectorEnv
from rlcore.envs.vector.choose import make_vector_env
from rlcore.functional.noise import Noise
from rlcore.train.collect import Collector
from rlcore.types import Batch
from tests.contract.test_registry import SETTINGS
from tests.learning.assembly import context

COPIES, ROWS = 6, 8
PLAIN = {"normalize_obs": False, "normalize_reward": False}


class NoNumbers(Noise):
    """Stream of tensors without values."""

    def __init__(self) -> None:
        super().__init__(0, "policy")
        self.normal = self.exponential = self.uniform = lambda *shape: torch.empty(shape, device="meta")

    def in_a_row(self, kind: str, count: int, shape: Any) -> Any:
        raise AssertionError("only compiled acting draws in advance")


def environments(env_id: str) -> BatchedVectorEnv:
    return make_vector_env(EnvConfig(id=env_id), num_envs=COPIES, seed=0, device="meta")


def learner_and_collector(algo: str, env_id: str) -> tuple[Any, Collector]:
    envs = environments(env_id)
    settings = SETTINGS[algo] | (PLAIN if algo in ("ppo", "a2c", "ppo_recurrent") else {})
    learner, *_ = ALGORITHMS[algo].build(context(settings, envs.spec, COPIES))
    learner.agent.to("meta")
    return learner, Collector(envs, learner.agent, NoNumbers(), "meta")


@pytest.mark.parametrize("algo", ["ppo", "a2c", "ppo_recurrent", "sac", "simba", "dreamer_v3"])
def test_rollout_reads_no_value(algo: str) -> None:
    _, collector = learner_and_collector(algo, "batched/Pendulum-v1")
    for _ in range(2):
        steps, last = collector.collect(ROWS)
    assert steps.reward.device.type == last.reward.device.type == "meta"
    with pytest.raises(RuntimeError):
        collector.env_steps  # noqa: B018  the number of actions is read only here, by who needs it


@pytest.mark.parametrize("algo", ["ppo", "a2c", "ppo_recurrent"])
def test_update_reads_no_value(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, collector = learner_and_collector(algo, "batched/CartPole-v1")
    taken: list[Any] = []

    def step(*inputs: Any, rng: Any = None) -> dict[str, Tensor]:
        taken.append(inputs)
        return {"Loss/policy_loss": torch.zeros((), device="meta")}

    monkeypatch.setattr(learner, "step", step)
    steps, last = collector.collect(ROWS)
    metrics = learner.update(Batch(steps, last, policy_steps=0), np.random.default_rng(0))
    assert taken and metrics["Loss/policy_loss"].device.type == "meta"


def test_read_in_step_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above fail for an environment that scales its actions by a number that it reads from the device."""
    _, collector = learner_and_collector("ppo", "batched/Pendulum-v1")
    step = Pendulum.step
    monkeypatch.setattr(Pendulum, "step", lambda self, action: step(self, action * float(action.abs().max())))
    with pytest.raises(RuntimeError):
        collector.collect(ROWS)


def test_episodes_are_read_only_on_request() -> None:
    _, collector = learner_and_collector("ppo", "batched/Pendulum-v1")
    collector.collect(ROWS)
    with pytest.raises(RuntimeError):
        collector.envs.pop_episodes()
