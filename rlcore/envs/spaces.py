"""Facts that an agent must know of an environment, read from its spaces."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, Binding, EnvSpec, Window
from rlcore.system.free import memory, size

GOALS = ("achieved_goal", "desired_goal")  # of a GoalEnv, beside its `observation`
WINDOWS = "frame_windows"  # attribute of the wrapper that says what of the past of its images is seen
REAL = ("float16", "float32", "float64")  # types that torch has too; of actions these alone
WHOLE = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
LARGEST = float(np.finfo(np.float32).max)  # of what agents compute with; beyond, a finite number becomes infinite
UNCHECKED = 32 << 20  # bytes that every machine has
MOST_ELEMENTS = 100_000  # of an action: each is an output of the policy
Bounds = dict[str, tuple[np.ndarray, np.ndarray]]
BINDINGS = "mask_bindings"  # attribute of an environment: key -> (part,) or (part, by, when), as `Binding` has them


def spec_of(env: gymnasium.Env) -> EnvSpec:
    """Id, observation keys and action of an environment from `make`, whose observations are a flat dict.

    A UserError names the key and the space where no agent here can take it.
    """
    found = obs_spaces(env)
    obs = {key: array_spec(key, space) for key, space in found.items()}
    goals = GOALS if all(key in obs for key in GOALS) else ()
    windows: dict[str, Window] = env.get_wrapper_attr(WINDOWS) if env.has_wrapper_attr(WINDOWS) else {}
    for key, part in obs.items():
        kind = "goal" if key in goals else kind_of(key, found[key])
        obs[key] = dataclasses.replace(part, kind=kind, window=windows.get(key))
    spec, action = env.unwrapped.spec, action_spec(env.action_space)
    for key, about in bind(obs, action, getattr(env.unwrapped, BINDINGS, {})).items():
        obs[key] = dataclasses.replace(obs[key], binds=about)
    return EnvSpec(spec.id if spec is not None else type(env.unwrapped).__name__, obs, action)


def bind(obs: dict[str, ArraySpec], action: ActionSpec, told: Mapping[str, Any]) -> dict[str, Binding]:
    """Bindings of masks to actions, as an environment tells them, by key.

    Args:
        obs: its keys.
        action: its action.
        told: its attribute `mask_bindings`.

    Returns:
        The same as records.

    Raises:
        UserError: a key is no mask, or does not fit what it is said to be about.
    """
    found: dict[str, Binding] = {}
    for key, value in told.items():
        part, *rest = value
        about, choices = Binding(part, rest[0], tuple(rest[1])) if rest else Binding(part), action.nvec
        fits = key in obs and obs[key].kind == "mask" and 0 <= about.part < len(choices)
        fits = fits and obs[key].size == choices[about.part]
        if about.by is not None:
            fits = fits and 0 <= about.by < about.part and bool(about.when)
            fits = fits and all(0 <= choice < choices[about.by] for choice in about.when)
        if not fits:
            raise UserError(
                f"{BINDINGS}: {key}: {tuple(value)} of the environment is not (part, by, when) of a mask with an entry "
                f"for each choice of sub-action `part`, where `by` comes before it (choices: {list(choices)})"
            )
        found[key] = about
    return found


def obs_spaces(env: gymnasium.Env) -> dict[str, Any]:
    """Observation key -> space of an environment from `make`."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict):
        raise TypeError(f"expected an environment from rlcore.envs.make, got observations {space}")
    return dict(space.spaces)


def action_spec(space: spaces.Space[Any]) -> ActionSpec:
    """The action that a space describes; sub-actions are counted in C order of the space's shape.

    A UserError unless it is a Box of real numbers, Discrete, MultiDiscrete or MultiBinary, of which an agent has
    something to choose.
    """
    if not isinstance(space, spaces.Discrete) and (count := math.prod(space.shape or ())) > MOST_ELEMENTS:
        kind = type(space).__name__
        raise UserError(
            f"action space {kind} of shape {list(space.shape or ())}: it has {count:,} elements, and at most "
            f"{MOST_ELEMENTS:,} can be trained; make it smaller"
        )
    if isinstance(space, spaces.Box) and str(space.dtype) in REAL:
        low, high = (tuple(float(v) for v in bound.reshape(-1)) for bound in _usable_bounds(space))
        action = ActionSpec("Box", tuple(space.shape), str(space.dtype), low=low, high=high)
        if not action.size:
            raise UserError(
                f"action space {space}: none of its elements has more than one value (low < high), so there is "
                "nothing to learn; widen its bounds"
            )
        return action
    if isinstance(space, spaces.Discrete):
        return ActionSpec("Discrete", (), str(space.dtype), (int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (tuple(int(v) for v in part.reshape(-1)) for part in (space.nvec, space.start))
        return ActionSpec("MultiDiscrete", tuple(space.shape), str(space.dtype), nvec, start)
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return ActionSpec("MultiBinary", tuple(space.shape), str(space.dtype), (2,) * size, (0,) * size)
    raise UserError(
        f"action space {space}: only Box of {', '.join(REAL)}, Discrete, MultiDiscrete and MultiBinary can be trained"
    )


def refuse_large(asked: str, what: str, count: int) -> None:
    """Refuse, before it is made, what would take a large part of the free memory in one environment alone.

    Args:
        asked: key and value, or the environment, that ask for it.
        what: would take so much.
        count: bytes.

    Raises:
        UserError: it takes more than a sixteenth of what is free.
    """
    if count > UNCHECKED and count * 16 > (free := memory()):
        raise UserError(
            f"{asked}: {what} would take {size(count)} in each environment, and {size(free)} of memory are free here; "
            "make it smaller"
        )


def refuse_large_observations(env: gymnasium.Env, name: str) -> None:
    """Refuse an environment with an observation that does not fit into memory; a UserError."""
    for leaf in _leaves(env.observation_space):
        if leaf.shape is not None and leaf.dtype is not None:
            shown = f"an observation of shape {list(leaf.shape)} and type {leaf.dtype}"
            refuse_large(f"env.id={name}", shown, math.prod(leaf.shape) * leaf.dtype.itemsize)


def _leaves(space: spaces.Space[Any]) -> Iterator[spaces.Space[Any]]:
    inner = space.spaces if isinstance(space, (spaces.Dict, spaces.Tuple)) else None
    if inner is None:
        yield space
        return
    for part in inner.values() if isinstance(inner, dict) else inner:
        yield from _leaves(part)


def _usable_bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of a Box of actions; infinite if their distance is no finite number, since nothing can be scaled to it.

    A UserError if both bounds are the same infinity.
    """
    low, high = np.array(space.low, np.float64), np.array(space.high, np.float64)
    if (wrong := np.isinf(low) & (low == high)).any():
        place = [int(i) for i in np.argwhere(wrong)[0]]
        raise UserError(
            f"action space of shape {list(space.shape)}: element {place} has the bounds {low[tuple(place)]} and "
            f"{high[tuple(place)]}; give it numbers, or -inf and inf"
        )
    with np.errstate(over="ignore"):
        endless = np.isinf(high - low) & np.isfinite(low) & np.isfinite(high)
    return np.where(endless, -np.inf, low), np.where(endless, np.inf, high)


def kind_of(key: str, space: spaces.Space[Any]) -> str:
    """Kind of an observation key: an image, a mask of actions or a vector.

    An image has three dimensions, or four with frames before them, and whole numbers of 8 bits, or real ones from 0
    to 1. A mask is named so, and has nothing but 0 and 1.
    """
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    binary = isinstance(space, spaces.MultiBinary) or space.dtype == bool
    bounded = low is not None and high is not None and np.all(low == 0) and np.all(high == 1)
    if key.startswith(("action_mask", "mask")) and (binary or bounded):
        return "mask"
    pixels = space.dtype == np.uint8 or (bounded and space.dtype is not None and space.dtype.kind == "f")
    return "image" if isinstance(space, spaces.Box) and len(space.shape) in (3, 4) and pixels else "vector"


def is_plane(space: spaces.Space[Any]) -> bool:
    """Tell whether observations may be gray images [height, width], of pixels from 0 to 255."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 2 or space.dtype != np.uint8:
        return False
    return bool(np.all(space.low == 0) and np.all(space.high == 255))


def obs_bounds(env: gymnasium.Env) -> Bounds:
    """Lower and upper bounds [*shape] of the observation keys that have any finite one, Discrete keys included."""
    bounds: Bounds = {}
    for key, space in obs_spaces(env).items():
        if isinstance(space, spaces.Discrete):
            bounds[key] = (np.asarray(space.start), np.asarray(space.start + space.n - 1))
        elif isinstance(space, spaces.MultiDiscrete):
            bounds[key] = (space.start, space.start + space.nvec - 1)
        elif isinstance(space, spaces.MultiBinary):
            bounds[key] = (np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype))
        elif np.isfinite(space.low).any() or np.isfinite(space.high).any():
            bounds[key] = (space.low, space.high)
    return bounds


def array_spec(key: str, space: spaces.Space[Any]) -> ArraySpec:
    """The observation that a space describes, as a vector without a past; a UserError where no agent can take it."""
    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int64", int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return ArraySpec(tuple(space.shape), "int64")
    if isinstance(space, (spaces.Box, spaces.MultiBinary)) and str(space.dtype) in (*REAL, *WHOLE):
        bounds = (_edge(space.low.min()), _edge(space.high.max())) if isinstance(space, spaces.Box) else None
        return ArraySpec(tuple(space.shape), str(space.dtype), bounds=bounds)
    fix = "leave it out of the environment's space"
    if isinstance(space, spaces.Box):
        fix = f"declare one of {', '.join((*REAL, *WHOLE))}"
        raise UserError(f"observation {key!r} is a Box of {space.dtype}, which torch does not have; {fix}")
    raise UserError(
        f"observation {key!r} is {space}: only Box, Discrete, MultiDiscrete and MultiBinary can be observed; {fix}"
    )


def _edge(bound: Any) -> float | None:
    return float(bound) if np.isfinite(bound) else None
