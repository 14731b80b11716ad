"""Suite of batched environments: B copies are computed together as tensors on the agent's device.

This module does not import torch, because environments in worker processes do not need it. The environments are in
`rlcore.envs.batched`, which is imported when one is created.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.wrappers import TimeLimit

from rlcore.envs.suites.suite import BatchedFactory, Suite
from rlcore.errors import UserError

CLASSES = {  # id -> module and class in rlcore.envs.batched
    "batched/Acrobot-v1": "classic_control:Acrobot",
    "batched/CartPole-v1": "classic_control:CartPole",
    "batched/MountainCar-v0": "classic_control:MountainCar",
    "batched/MountainCarContinuous-v0": "classic_control:MountainCarContinuous",
    "batched/Pendulum-v1": "classic_control:Pendulum",
    "batched/rl8-cartpole": "rl8_tasks:CartPole",
    "batched/rl8-continuous_dummy": "rl8_tasks:ContinuousDummy",
    "batched/rl8-discrete_dummy": "rl8_tasks:DiscreteDummy",
    "batched/rl8-mountain_car": "rl8_tasks:MountainCar",
    "batched/rl8-pendulum": "rl8_tasks:Pendulum",
}


class BatchedSuite(Suite):
    """Suite of the batched environments of this project."""

    name = "batched"
    note = "many copies as one tensor program, on a CPU or GPU"

    def ids(self) -> Sequence[str]:
        """Return the ids, which have the form `batched/<id>`."""
        return tuple(CLASSES)

    def source(self, env_id: str) -> Any:
        """Return the class of an id, a subclass of `rlcore.envs.batched.env.BatchedEnv`."""
        module, _, name = CLASSES[env_id].partition(":")
        return getattr(importlib.import_module(f"rlcore.envs.batched.{module}"), name)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create one copy with the interface of Gymnasium, and its time limit."""
        return view(self.source(env_id), env_id, arguments)

    def batched(self, env_id: str, arguments: Mapping[str, Any]) -> BatchedFactory:
        """Return a function (number of copies, device) -> batched environment."""
        return factory(self.source(env_id), arguments)

    def free_instances(self, env_id: str) -> int | None:
        """Return the largest number of copies that the class supports; None if there is no limit."""
        return self.source(env_id).max_num_envs

    def parameters(self, env_id: str) -> list[str]:
        """Return the names of the arguments of the class, without the number of copies and the device."""
        return parameters(self.source(env_id))


def is_batched(found: object) -> bool:
    """Return True for a subclass of `rlcore.envs.batched.env.BatchedEnv`; the module is not imported."""
    bases = found.__mro__ if isinstance(found, type) else ()
    return any((base.__module__, base.__name__) == ("rlcore.envs.batched.env", "BatchedEnv") for base in bases)


def factory(make: Any, arguments: Mapping[str, Any]) -> BatchedFactory:
    """Return a function (number of copies, device, more arguments) -> batched environment that calls `make`."""
    return lambda num_envs, device, **more: make(num_envs, device, **{**arguments, **more})


def view(make: Any, name: str | None, arguments: Mapping[str, Any]) -> gymnasium.Env:
    """Return one copy of a batched environment with the interface of Gymnasium and its time limit.

    `name` is its id; None: the name of its class.
    """
    from rlcore.envs.batched.gymnasium_view import GymnasiumView

    env = make(1, "cpu", **arguments)
    one = GymnasiumView(env)
    one.spec = GymnasiumSpec(name or type(env).__name__)
    return one if env.max_episode_steps is None else TimeLimit(one, env.max_episode_steps)


def parameters(make: Any) -> list[str]:
    """Return the names of the arguments of a batched environment that `env.wrapper` can set."""
    return [name for name in inspect.signature(make).parameters if name not in ("self", "num_envs", "device")]


def refuse_too_many(most: int | None, asked: str, num_envs: int) -> None:
    """Raise UserError if a batched environment does not support this number of copies."""
    if most is not None and num_envs > most:
        raise UserError(
            f"{asked}, env.num_envs={num_envs}: at most {most} copies are supported; set env.num_envs={most}"
        )
