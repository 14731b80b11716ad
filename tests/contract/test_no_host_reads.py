"""A rollout and an update in batched environments read no value from the device, so that a GPU never waits for Python.

The device is torch's "meta", whose tensors have no values: reading one raises an error.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
META = torch.device("meta")
ON_POLICY = ["ppo", "a2c", "ppo_recurrent"]
# Options that could wait for the device; the settings that all cases share normalize observations and rewards.
OPTIONS: dict[str, dict[str, Any]] = {
    "normalization": {},
    "KL stop": {"target_kl": 0.01, "accumulate_minibatches": None, "anneal_clip_coef": True},
    "statistics of the rollout": {"reward_scale": "rollout", "advantage_scope": "rollout", "gae_method": "log_scan"},
    "losses": {"dual_clip": 3.0, "value_loss": "smooth_l1", "value_loss_cap": 10.0, "shuffle": False},
    "windows": {
        "windows": {"state": {"frames": 3, "kind": "padded"}},
        "optimizer": {"name": "rmsprop", "lr": 1e-3, "clip_norm": "tensor"},
    },
}


class NoNumbers(Noise):
    """Stream of tensors without values."""

    def __init__(self) -> None:
        super().__init__(0, "policy")
        self.normal = self.exponential = self.uniform = lambda *shape: torch.empty(shape, device="meta")

    def in_a_row(self, kind: str, count: int, shape: Any) -> Any:
        raise AssertionError("only compiled acting draws in advance")


def environments(env_id: str) -> BatchedVectorEnv:
    return make_vector_env(EnvConfig(id=env_id), num_envs=COPIES, seed=0, device="meta")


def learner_and_collector(algo: str, env_id: str, **changes: Any) -> tuple[Any, Collector]:
    """Return a learner and a collector on the device of these tests."""
    envs = environments(env_id)
    precision = SimpleNamespace(precision="32-true", convert_module=lambda module: module)
    fabric: Any = SimpleNamespace(
        device=META,
        to_device=lambda module: module.to(META),
        autocast=nullcontext,
        strategy=SimpleNamespace(precision=precision),
    )
    given = context(SETTINGS[algo] | changes, envs.spec, COPIES)
    if algo in ON_POLICY:  # the learners of the other algorithms have random streams, which this device lacks
        sgd = {"optimizer": {"name": "sgd", "lr": 1e-3}} | changes  # fused Adam does not support it either
        given = replace(context(SETTINGS[algo] | sgd, envs.spec, COPIES), fabric=fabric)
    learner, *_ = ALGORITHMS[algo].build(given)
    learner.agent.to(META)
    return learner, Collector(envs, learner.agent, NoNumbers(), META)


@pytest.mark.parametrize("algo", ["ppo", "a2c", "ppo_recurrent", "sac", "simba", "dreamer_v3"])
def test_rollout_reads_no_value(algo: str) -> None:
    _, collector = learner_and_collector(algo, "batched/Pendulum-v1")
    for _ in range(2):
        steps, last = collector.collect(ROWS)
    assert steps.reward.device.type == last.reward.device.type == "meta"
    with pytest.raises(RuntimeError):
        collector.env_steps  # noqa: B018  the number of actions is read only here, by who needs it


class Copies(TorchDispatchMode):
    """Context manager that counts tensors which are copied from the host, which a CUDA graph cannot contain."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor) and part.dim()]
        found = func(*args, **(kwargs or {}))
        made = [part for part in tree_leaves(found) if isinstance(part, Tensor)]
        self.count += any(part.is_cpu for part in given) and any(part.is_meta for part in made)
        return found


@pytest.mark.parametrize(
    ("algo", "option"),
    [*(("ppo", option) for option in OPTIONS), ("ppo_recurrent", "KL stop"), ("a2c", "normalization")],
)
def test_update_reads_no_value(algo: str, option: str) -> None:
    learner, collector = learner_and_collector(algo, "batched/CartPole-v1", **OPTIONS[option])
    for _ in range(2):
        steps, last = collector.collect(ROWS)
        with Copies() as copies:
            metrics = learner.update(Batch(steps, last, policy_steps=0), np.random.default_rng(0))
    assert metrics["Info/grad_norm"].device.type == "meta" and copies.count == 0
    if "target_kl" in OPTIONS[option]:
        with pytest.raises(RuntimeError):
            learner.updates  # noqa: B018  the number of gradient steps is read only here, by who needs it


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
