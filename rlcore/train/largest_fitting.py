"""Config value that makes a run too large for the machine, and the largest value that fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.config.schema import Argument, arguments
from rlcore.config.values import at, plain
from rlcore.errors import UserError
from rlcore.spec import EnvSpec, Window

MEMORY = "buffer.size"
NOT_A_SIZE = ("algo.total_steps", "seed")


@dataclass(frozen=True)
class _Number:
    """Integer in the config that is reduced to find the largest value that fits into memory.

    Attributes:
        keys: all config keys with this value; several networks may inherit one default.
        value: the value in the config.
        low: smallest value to try.
    """

    keys: tuple[str, ...]
    value: int
    low: int


def largest_fitting(config: RunConfig, fits: Callable[[RunConfig], bool]) -> tuple[str, Any, int] | None:
    """Find the config value that makes a run too large for the machine.

    A value is a candidate if the config fits the machine after reducing only this value. If there are several
    candidates, the one with the largest ratio to its default is chosen.

    Args:
        config: a config that does not fit.
        fits: returns True if a config fits. It must be monotonic: if a config fits, so does a config with smaller
            values.

    Returns:
        Key, value, and the largest value that fits, rounded down to two significant digits. None if there is no
        candidate, or if the only candidate is the size of the replay buffer and the algorithm needs a larger buffer
        than fits.
    """
    suspects = sorted(_numbers(config), key=lambda number: -number.value / max(1, number.low))
    for number in suspects:
        largest = _largest(config, number, fits)
        if largest is not None and (number.keys != (MEMORY,) or _is_possible(_with(config, number.keys, largest))):
            key = min(number.keys, key=len)
            return key, at(plain(config), key), largest
    return None


def _largest(config: RunConfig, number: _Number, fits: Callable[[RunConfig], bool]) -> int | None:
    """Return the largest value of the config keys `number.keys` with which the config fits the machine.

    The value is rounded down to two significant digits. None if even the smallest value does not fit.
    """

    def fit(number: _Number, value: int) -> bool:
        return fits(_with(config, number.keys, value))

    low, high = number.low, number.value
    if not fit(number, low):
        return None
    while high - low > max(1, low // 20):
        far = high > 4 * max(1, low)
        middle = max(low + 1, int((max(1, low) * high) ** 0.5)) if far else (low + high) // 2
        low, high = (middle, high) if fit(number, middle) else (low, middle)
    digit = 10 ** max(0, len(str(low)) - 2)
    return max(number.low, low // digit * digit)


def _is_possible(config: RunConfig) -> bool:
    """Return True if the algorithm accepts the config, for example the size of its replay buffer."""
    try:
        config.algo.check_with(config)
    except UserError:
        return False
    return True


def _numbers(config: RunConfig) -> Iterator[_Number]:
    values = plain(config)
    groups: dict[tuple[str, int], list[Argument]] = {}
    for argument in (*arguments(RunConfig), *arguments(type(config.algo), "algo.")):
        value = at(values, argument.key)
        if argument.key == "fabric.devices" and str(value).isdecimal():
            value = int(value)
        if argument.key == "checkpoint.keep_last" and value is None:
            value = (config.algo.total_steps or 0) // config.checkpoint_every
        if argument.key == MEMORY and value is None:
            value = config.algo.count_remembered(config)
        if type(value) is int and argument.key not in NOT_A_SIZE:
            groups.setdefault((argument.key.rpartition(".")[2], value), []).append(argument)
    for (_, value), alike in groups.items():
        default = min((a.default for a in alike if type(a.default) is int), default=value)
        low = default if default < value else int(max(a.low or 1 for a in alike))
        if low < value:
            yield _Number(tuple(argument.key for argument in alike), value, low)


def _with(group: Any, keys: tuple[str, ...], value: int) -> Any:
    for key in keys:
        group = _replace(group, key.split("."), value)
    return group


def _replace(group: Any, path: list[str], value: int) -> Any:
    name, *rest = path
    return dataclasses.replace(group, **{name: _replace(getattr(group, name), rest, value) if rest else value})


def resized(spec: EnvSpec, old: EnvConfig, new: EnvConfig) -> EnvSpec:
    """Return the spec that an environment would have with other sizes, without creating the environment.

    The sizes are `screen_size`, `frame_stack`, `frame_stack_dilation` and `actions_as_observation.num_stack`.

    Args:
        spec: spec of the environment with the config `old`.
        old: config of the environment.
        new: config with other sizes; all other keys are the same as in `old`.

    Returns:
        The spec of the environment with the config `new`.
    """
    obs = dict(spec.obs)
    actions, resized_actions = old.actions_as_observation.num_stack, new.actions_as_observation.num_stack
    if actions != resized_actions and "action_stack" in obs and actions > 0:
        stack = obs["action_stack"]
        obs["action_stack"] = replace(stack, shape=(math.prod(stack.shape) // actions * max(0, resized_actions),))
    frames = (new.frame_stack, new.frame_stack_dilation)
    for key, part in spec.obs.items():
        if part.window is not None and frames != (old.frame_stack, old.frame_stack_dilation):
            obs[key] = replace(obs[key], window=Window(*frames) if new.frame_stack > 1 else None)
        if part.kind == "image" and new.screen_size and new.screen_size != old.screen_size:
            sides = (new.screen_size if side == old.screen_size else side for side in part.shape)
            obs[key] = replace(obs[key], shape=tuple(sides))
    return replace(spec, obs=obs)
