"""Conversion of Gymnasium spaces to `EnvSpec`, and checks that agents can be trained on these spaces."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, Binding, EnvSpec, Window, is_mask_name
from rlcore.system.free_memory import memory, size

GOALS = ("achieved_goal", "desired_goal")  # keys that a GoalEnv has in addition to `observation`
WINDOWS = "frame_windows"  # attribute of the wrapper that declares the frame stack of each image
REAL = ("float16", "float32", "float64")  # dtypes that torch also has; the only ones allowed for Box actions
WHOLE = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
LARGEST = float(np.finfo(np.float32).max)  # agents compute in float32, in which larger numbers become infinite
UNCHECKED = 32 << 20  # bytes; arrays up to this size are always allowed
MOST_ELEMENTS = 100_000  # maximum number of elements of an action; the policy has an output for each of them
Bounds = dict[str, tuple[np.ndarray, np.ndarray]]
BINDINGS = "mask_bindings"  # attribute of an environment: key -> (part,) or (part, by, when), the fields of `Binding`


def spec_of(env: gymnasium.Env) -> EnvSpec:
    """Return the `EnvSpec` (id, observation keys and action) of an environment that `make` created.

    Raise UserError with the key and the space if no agent of this project supports the space.
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


def bind(obs: dict[str, ArraySpec], action: ActionSpec, declared: Mapping[str, Any]) -> dict[str, Binding]:
    """Convert the attribute `mask_bindings`, in which an environment declares the sub-action of each action mask.

    Args:
        obs: observation key -> spec.
        action: spec of the action.
        declared: mask key -> (part,) or (part, by, when). The mask applies to the sub-action with index `part`. If `by`
            and `when` are present, the mask applies only if the choice of the earlier sub-action `by` is in `when`.

    Returns:
        Mask key -> `Binding`.

    Raises:
        UserError: A key is not an action mask, the mask has another size than its sub-action, or `by` or `when` is not
            valid.
    """
    found: dict[str, Binding] = {}
    for key, value in declared.items():
        part, *rest = value
        about, choices = Binding(part, rest[0], tuple(rest[1])) if rest else Binding(part), action.choices
        if rest and action.parts:
            raise UserError(
                f"{BINDINGS}: the environment declares {key!r}: {tuple(value)}, but the mask of a part of a Dict or "
                "Tuple action cannot depend on another choice; declare (part,)"
            )
        fits = key in obs and obs[key].kind == "mask" and 0 <= about.part < len(choices)
        fits = fits and obs[key].size == choices[about.part]
        if about.by is not None:
            fits = fits and 0 <= about.by < about.part and bool(about.when)
            fits = fits and all(0 <= choice < choices[about.by] for choice in about.when)
        if not fits:
            raise UserError(
                f"{BINDINGS}: the environment declares {key!r}: {tuple(value)}, but the value must be (part,) or "
                f"(part, by, when): part = index of the sub-action to which the action mask {key!r} applies (the mask "
                "has one entry for each of its choices), by = index of an earlier sub-action, when = list of choices "
                f"of sub-action `by`. The numbers of choices of the sub-actions are {list(choices)}"
            )
        found[key] = about
    return found


def obs_spaces(env: gymnasium.Env) -> dict[str, Any]:
    """Return observation key -> space, for an environment that `make` created."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict):
        raise TypeError(f"expected an environment from rlcore.envs.make, got observations {space}")
    return dict(space.spaces)


def action_spec(space: spaces.Space[Any]) -> ActionSpec:
    """Convert an action space to an `ActionSpec`; sub-actions of an action with several axes are in C order.

    A Dict or Tuple of such spaces becomes a composite action, whose parts are in the order of the space.

    Raise UserError if the space is not a Box of real numbers, Discrete, MultiDiscrete or MultiBinary. Also raise
    UserError if the space has too many elements, or if it is a Box in which every element has only one possible value.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _composite(space)
    if not isinstance(space, spaces.Discrete) and (count := math.prod(space.shape or ())) > MOST_ELEMENTS:
        kind = type(space).__name__
        raise UserError(
            f"action space {kind} of shape {list(space.shape or ())}: it has {count:,} elements, but at most "
            f"{MOST_ELEMENTS:,} are supported; make the action space smaller"
        )
    if isinstance(space, spaces.Box) and str(space.dtype) in REAL:
        low, high = (tuple(float(v) for v in bound.reshape(-1)) for bound in _usable_bounds(space))
        action = ActionSpec("Box", tuple(space.shape), str(space.dtype), low=low, high=high)
        if not action.size:
            raise UserError(
                f"action space {space}: every element has only one possible value (low = high), so there is nothing "
                "to learn; set low < high for at least one element"
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
        f"action space {space}: only Box of {', '.join(REAL)}, Discrete, MultiDiscrete and MultiBinary, and Dict and "
        "Tuple of them, are supported; change it in the environment, or convert it in a wrapper"
    )


def _composite(space: spaces.Space[Any]) -> ActionSpec:
    """Convert a Dict or Tuple of action spaces, which can be nested, to the spec of a composite action."""
    if not (leaves := dict(named_leaves(space))):
        raise UserError(f"action space {space}: it is empty, so there is nothing to learn; add a space to it")
    parts = tuple(action_spec(leaf) for leaf in leaves.values())
    width = sum(math.prod(part.shape) for part in parts)
    return ActionSpec("Composite", (width,), "float64", parts=parts, names=tuple(leaves))


def named_leaves(space: spaces.Space[Any], name: str = "") -> Iterator[tuple[str, spaces.Space[Any]]]:
    """Yield the path and the space of each part of a nested Dict or Tuple, in order."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield name, space
        return
    inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in inner:
        yield from named_leaves(part, f"{name}/{key}" if name else str(key))


def refuse_large(asked: str, what: str, count: int) -> None:
    """Raise UserError if a large array of one environment does not fit into memory; call it before the allocation.

    Args:
        asked: text at the start of the error message: `key=value` of the option that needs the array.
        what: description of the array for the error message.
        count: size of the array in bytes.

    Raises:
        UserError: The array needs more than a sixteenth of the free memory (and more than 32 MiB).
    """
    if count > UNCHECKED and count * 16 > (free := memory()):
        raise UserError(
            f"{asked}: {what} would take {size(count)} in each environment, but {size(free)} of memory are free; "
            "reduce its size"
        )


def refuse_large_observations(env: gymnasium.Env, name: str) -> None:
    """Raise UserError if an observation of an environment does not fit into memory."""
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
    """Return the lower and upper bounds of an action Box, as float64.

    If high - low overflows for an element, an action cannot be scaled by this difference. Such an element gets the
    bounds -inf and inf. Raise UserError if both bounds of an element are +inf, or both are -inf.
    """
    low, high = np.array(space.low, np.float64), np.array(space.high, np.float64)
    if (wrong := np.isinf(low) & (low == high)).any():
        place = [int(i) for i in np.argwhere(wrong)[0]]
        raise UserError(
            f"action space of shape {list(space.shape)}: element {place} has the bounds {low[tuple(place)]} and "
            f"{high[tuple(place)]}; use finite numbers, or -inf and inf"
        )
    with np.errstate(over="ignore"):
        endless = np.isinf(high - low) & np.isfinite(low) & np.isfinite(high)
    return np.where(endless, -np.inf, low), np.where(endless, np.inf, high)


def kind_of(key: str, space: spaces.Space[Any]) -> str:
    """Return the kind of an observation key: "image", "mask" (action mask) or "vector".

    An image is a Box with three axes, or with four axes if it is a stack of frames (first axis). The dtype of an image
    is uint8, or a float type with the bounds 0 and 1. An action mask has a key that starts with `action_mask` or
    `mask`, and a space that contains only the values 0 and 1. In a nested observation, the innermost key can also start
    with `action_mask`.
    """
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    binary = isinstance(space, spaces.MultiBinary) or space.dtype == bool
    bounded = low is not None and high is not None and np.all(low == 0) and np.all(high == 1)
    if (key.startswith("mask") or is_mask_name(key)) and (binary or bounded):
        return "mask"
    pixels = space.dtype == np.uint8 or (bounded and space.dtype is not None and space.dtype.kind == "f")
    return "image" if isinstance(space, spaces.Box) and len(space.shape) in (3, 4) and pixels else "vector"


def is_plane(space: spaces.Space[Any]) -> bool:
    """Return True if a space can be a gray image: [height, width], uint8, from 0 to 255."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 2 or space.dtype != np.uint8:
        return False
    return bool(np.all(space.low == 0) and np.all(space.high == 255))


def obs_bounds(env: gymnasium.Env) -> Bounds:
    """Return the bounds (lower, upper), each [*shape], of every observation key that has a finite bound.

    Discrete observations are included, because their values are bounded.
    """
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
    """Convert an observation space to an `ArraySpec` of kind "vector"; raise UserError if it is not supported."""
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
        raise UserError(f"observation {key!r} is a Box of {space.dtype}, which torch does not support; {fix}")
    raise UserError(
        f"observation {key!r} is {space}: only Box, Discrete, MultiDiscrete and MultiBinary are supported; {fix}"
    )


def _edge(bound: Any) -> float | None:
    return float(bound) if np.isfinite(bound) else None
