"""Checks of each value that `reset` and `step` of a batched environment return or store."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.envs.batched.env import BatchedEnv
from rlcore.errors import EnvironmentFault
from rlcore.functional.tree import map_leaves
from rlcore.user_code import spell_error

GENERATORS: dict[str, Callable[[], Any]] = {  # module -> function that returns the state of its global generator
    "torch": lambda: torch.get_rng_state().numpy().tobytes(),
    "numpy": lambda: pickle.dumps(np.random.get_state()),
    "random": random.getstate,
}


class CheckedCalls:
    """Checks of the calls of one batched environment, whose methods `reset` and `step` are replaced.

    Args:
        env: batched environment.
        place: config key and value that select the environment, for messages.

    Raises:
        EnvironmentFault: In a call of `env.reset` or `env.step` that violates a rule in the docstring of `BatchedEnv`.
    """

    def __init__(self, env: BatchedEnv, place: str) -> None:
        self.env, self.place = env, place
        self._reset, self._step = env.reset, env.step
        self._returned: dict[str, Tensor] = {}  # tensors that the last call returned or stored, by description
        self._state: dict[str, tuple[torch.Size, torch.dtype]] = {}
        setattr(env, "reset", self.reset)  # noqa: B010  pyright does not allow an assignment to a method
        setattr(env, "step", self.step)  # noqa: B010

    def reset(self, config: Any) -> Any:
        """Call and check `env.reset`."""
        obs = self._call("reset", lambda: self._reset(config))
        self._returned = dict(self._observations("reset", obs, self.env.observation_space))
        self._state = {}
        self._check_state("reset")
        return obs

    def step(self, action: Tensor) -> Any:
        """Call and check `env.step`."""
        found = self._call("step", lambda: self._step(action))
        fewest, most, expected = 3, 3, "observation, reward and terminated"
        if self.env.endless:
            fewest, expected = 2, "observation and reward"
        elif self.env.tier == "boundary":
            fewest, most, expected = 4, 4, "observation, reward, terminated and truncated"
        if not isinstance(found, tuple) or not fewest <= len(found) <= most:
            count = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
            raise self._fault("step", f"returned {count}, expected a tuple of {expected}")
        parts, copies = dict(self._observations("step", found[0], self.env.observation_space)), (self.env.num_envs,)
        kinds = {"the reward": torch.float32, "terminated": torch.bool, "truncated": torch.bool}
        for (name, kind), value in zip(kinds.items(), found[1:], strict=False):
            self._check("step", name, value, copies, kind)
            parts[name] = value
        self._returned = parts
        self._check_state("step")
        return found

    def _call(self, method: str, call: Callable[[], Any]) -> Any:
        """Call a method; raise an error if it fails, changes an earlier tensor, or uses a global random generator."""
        versions = {name: value._version for name, value in self._returned.items()}
        before = {name: state() for name, state in GENERATORS.items()}
        try:
            with watch_random() as called:
                found = call()
        except (RuntimeError, NotImplementedError) as error:
            if self.env.device.type == "meta":
                raise  # the caller explains it
            raise self._fault(method, f"raised {spell_error(error)}") from error
        except Exception as error:
            raise self._fault(method, f"raised {spell_error(error)}") from error
        for name, value in self._returned.items():
            if value._version != versions[name]:
                raise self._fault(method, f"changes {name} in place; compute a new tensor, for example x = x + 1")
        for name, state in GENERATORS.items():
            if before[name] != state() and (name != "random" or called):
                raise self._fault(
                    method,
                    f"draws from the global random generator of {name}, which a checkpoint does not contain; "
                    "draw from self.random",
                )
        return found

    def _observations(self, method: str, obs: Any, space: Any, key: str = "") -> Iterator[tuple[str, Tensor]]:
        """Check observations; yield their descriptions and tensors."""
        if isinstance(space, spaces.Tuple):
            place = f"observation_space[{key!r}]" if key else "observation_space"
            raise EnvironmentFault(
                f"{self.place}: {place} is a Tuple, which batched environments do not support; use a Dict"
            )
        if not isinstance(space, spaces.Dict):
            name, dtype = f"observation {key!r}" if key else "the observation", getattr(torch, str(space.dtype))
            self._check(method, name, obs, (self.env.num_envs, *space.shape), dtype)
            yield name, obs
            return
        what = f"observation {key!r}" if key else "the observation"
        if not isinstance(obs, Mapping):
            raise self._fault(
                method, f"returned {what} as a {type(obs).__name__}, expected a dict with {', '.join(space.spaces)}"
            )
        for name, part in space.spaces.items():
            inner = f"{key}.{name}" if key else str(name)
            if name not in obs:
                raise self._fault(
                    method,
                    f"returned no observation {inner!r}, expected the keys {', '.join(space.spaces)}; got "
                    f"{', '.join(map(str, obs)) or 'none'}",
                )
            yield from self._observations(method, obs[name], part, inner)

    def _check_state(self, method: str) -> None:
        """Check that `state` is a dict of tensors [B, ...] that keep shapes and dtypes."""
        state: Any = getattr(self.env, "state", None)
        if not isinstance(state, dict):
            raise self._fault(method, f"must set self.state to a dict of tensors; it is a {type(state).__name__}")
        if self._state and state.keys() != self._state.keys():
            raise self._fault(
                method, f"sets self.state with the keys {', '.join(state)}, but reset with {', '.join(self._state)}"
            )
        for name, value in state.items():
            place = f"self.state[{name!r}]"
            if not isinstance(value, Tensor) or value.shape[:1] != (self.env.num_envs,):
                got = _spell(value) if isinstance(value, Tensor) else f"a {type(value).__name__}"
                raise self._fault(method, f"sets {place} to {got}, expected a tensor [{self.env.num_envs}, ...]")
            self._check(method, place, value, *self._state.get(name, (tuple(value.shape), value.dtype)))
            self._returned[place] = value
        self._state = {name: (value.shape, value.dtype) for name, value in state.items()}

    def _check(self, method: str, name: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Check that a value is a finite tensor with this shape and dtype on the environment's device."""
        device = self.env.device
        expected = f"{_dtype(dtype)} {[*shape]} on {device}"
        if not isinstance(value, Tensor):
            raise self._fault(method, f"gives {name} as a {type(value).__name__}, expected {expected}")
        if tuple(value.shape) != tuple(shape) or value.dtype != dtype or value.device.type != device.type:
            raise self._fault(method, f"gives {name} as {_spell(value)}, expected {expected}")
        if device.type != "meta" and value.is_floating_point() and not bool(value.isfinite().all()):
            raise self._fault(method, f"gives {name} with values that are not finite")

    def _fault(self, method: str, problem: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self.place}: {method} {problem}")


@contextmanager
def watch_random() -> Iterator[list[str]]:
    """Collect the names of the methods of `random`'s global generator that this thread calls.

    Threads of libraries, for example Prefect's, draw from this generator at any time, so that a changed state does not
    show who drew. Calls from C code, as in `map(random.random, ...)`, are not collected.
    """
    called: list[str] = []
    generator, profiler = getattr(random.random, "__self__", None), sys.getprofile()

    def collect(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__self__", None) is generator:
            called.append(function.__name__)

    if profiler is not None:  # only one can be active
        yield ["unknown"]
        return
    sys.setprofile(collect)
    try:
        yield called
    finally:
        sys.setprofile(None)


def reorder(tensors: Any, order: Tensor) -> Any:
    """Return a nested structure of tensors with the copies in another order; tensors without dimensions stay."""
    return map_leaves(lambda part: part[order] if part.ndim else part, tensors)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _spell(value: Tensor) -> str:
    return f"{_dtype(value.dtype)} {[*value.shape]} on {value.device}"
