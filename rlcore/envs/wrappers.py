"""Wrappers of one environment, in the order in which `rlcore.envs.make.make` applies them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformAction
from gymnasium.wrappers.utils import rescale_box

from rlcore.config.values import nearest
from rlcore.envs.spaces import action_spec, kind_of, named_leaves, refuse_large
from rlcore.envs.velocities import LAYOUTS
from rlcore.errors import EnvironmentFault, UserError

OURS = __name__, "rlcore.envs.images"  # modules that define the wrappers of `make`


def layers(env: Any) -> Iterator[Any]:
    """Yield the wrappers of an environment, outermost first, then the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


class NormalizeAction(TransformAction):
    """Wrapper that lets agents act in [-1, 1] and rescales each element of an action to the bounds of the environment.

    Rescaled actions are clipped to these bounds. An element is not rescaled if low == high, or if one of its bounds is
    infinite. Raises UserError if the action space is not a Box of real numbers.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        space = env.action_space
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
            raise UserError(
                f"env.normalize_actions=true: the action space is {space}, not a Box of real numbers; "
                "set env.normalize_actions=false"
            )
        dtype: Any = space.dtype.type
        closed, finite = space.low == space.high, np.isfinite(space.low) & np.isfinite(space.high)
        low, high = (np.where(finite, edge, side).astype(dtype) for edge, side in ((-1, space.low), (1, space.high)))
        # An element with low == high cannot be scaled. It is not changed here; `action` clips it to its only value.
        scaled = spaces.Box(np.where(closed, low, space.low), np.where(closed, high, space.high), dtype=dtype)
        _, _, backward = rescale_box(scaled, low, high)
        shown = spaces.Box(np.where(closed, space.low, low), np.where(closed, space.high, high), dtype=dtype)
        super().__init__(env, backward, shown)

    def action(self, action: Any) -> np.ndarray:
        """Convert an action to the bounds and the dtype of the environment."""
        space: Any = self.env.action_space
        return np.clip(super().action(action), space.low, space.high).astype(space.dtype, copy=False)


class VectorAction(gymnasium.ActionWrapper):
    """Wrapper that converts an action vector to an element of a Dict or Tuple, the action space of the environment.

    The vector has the flattened parts in the order of the space (`ActionSpec.parts`). `action_space` is unchanged.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        action_spec(env.action_space)  # raises if a part is not supported

    def action(self, action: Any) -> Any:
        """Convert an action vector [W] to a nested action of the environment."""
        return self._nest(self.action_space, np.asarray(action), [0])

    def _nest(self, space: spaces.Space[Any], vector: np.ndarray, at: list[int]) -> Any:
        """Convert the numbers of a vector from index `at[0]` to an element of `space`, and move the index on."""
        if isinstance(space, spaces.Dict):
            return {key: self._nest(part, vector, at) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._nest(part, vector, at) for part in space.spaces)
        shape: Any = space.shape
        begin, at[0] = at[0], at[0] + math.prod(shape)
        part = vector[begin : at[0]].reshape(shape).astype(space.dtype)
        return part if shape else part[()]


class ActionRepeat(gymnasium.Wrapper):
    """Wrapper that repeats every action `amount` times, or until the episode ends; the rewards are summed."""

    def __init__(self, env: gymnasium.Env, amount: int) -> None:
        super().__init__(env)
        self.amount = amount

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat the action; return the last observation and the sum of the rewards."""
        total = 0.0
        for _ in range(self.amount):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


def bare_env(env: gymnasium.Env) -> gymnasium.Env:
    """Return the environment inside the wrappers that `make` added; it can have wrappers of Gymnasium and its suite."""
    return [layer.env for layer in layers(env) if type(layer).__module__ in OURS][-1]


def time_limit(env: gymnasium.Env) -> int | None:
    """Return the time limit of an environment, counted in actions of the agent, or None if it has no limit."""
    limits, repeat = [], 1
    for layer in layers(env):
        if isinstance(layer, ActionRepeat):
            repeat *= layer.amount  # limits inside this wrapper count environment steps
        if isinstance(layer, TimeLimit):
            limits.append(math.ceil(layer._max_episode_steps / repeat))  # pyright: ignore[reportPrivateUsage]
    return min(limits, default=None)


class FlatDictObservation(gymnasium.ObservationWrapper):
    """Wrapper that flattens nested observations to one dict; `flat_leaves` defines its keys.

    An observation that is neither a dict nor a tuple is stored under `key`. Arrays without elements are left out.
    Raises UserError if no array remains, or if two arrays would get the same key.
    """

    def __init__(self, env: gymnasium.Env, key: str = "state") -> None:
        super().__init__(env)
        self.key = key
        space = env.observation_space
        self.paths: dict[str, tuple[Any, ...]] = {}
        flat: dict[str, spaces.Space[Any]] = {}
        self.bare = not isinstance(space, (spaces.Dict, spaces.Tuple))
        for part, path, leaf in flat_leaves(space, key if self.bare else ""):
            if 0 in (leaf.shape or ()):
                continue
            if part in flat:
                raise UserError(
                    f"two observations of this environment get the key {part!r}; rename one of them in the "
                    "environment's observation space"
                )
            flat[part], self.paths[part] = leaf, path
        if not flat:
            raise UserError(f"observation space {space}: it has no elements; define a space with at least one number")
        self.observation_space = spaces.Dict(flat)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action.

        An observation that is neither a dict nor a tuple is wrapped in a dict without a call of `observation`, because
        the call would slow down environments with fast steps.
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        return {self.key: obs} if self.bare else self.observation(obs), reward, terminated, truncated, info

    def observation(self, observation: Any) -> dict[str, Any]:
        """Return the leaves of an observation as a new flat dict."""
        if self.bare:
            return {self.key: observation}
        return flatten(observation, self.paths)


Leaf = tuple[str, tuple[Any, ...], spaces.Space[Any]]  # flat key, path inside the observation, its space


def flat_leaves(space: spaces.Space[Any], key: str = "", path: tuple[Any, ...] = ()) -> list[Leaf]:
    """Return the leaves of a nested space in order, each as (key in the flat dict, path inside an observation, space).

    The keys of nested dicts are joined by a dot, as in `a.b`. The elements of a tuple get the key of the tuple and
    their index, as in `a_0`; if the tuple has no key, they are called `state_0`, `state_1`, ….
    """
    if isinstance(space, spaces.Dict):
        parts = [(f"{key}.{name}" if key else str(name), name, inner) for name, inner in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        parts = [(f"{key or 'state'}_{i}", i, inner) for i, inner in enumerate(space.spaces)]
    else:
        return [(key or "state", path, space)]
    return [leaf for name, step, inner in parts for leaf in flat_leaves(inner, name, (*path, step))]


def flatten(obs: Any, paths: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the leaves of a nested observation, or of a batch of observations, as a flat dict: key -> leaf.

    `paths` is key -> path of the leaf, as in `FlatDictObservation.paths`.
    """
    return {key: get_leaf(obs, path) for key, path in paths.items()}


def get_leaf(obs: Any, path: tuple[Any, ...]) -> Any:
    """Return the leaf at a path (keys and indices) inside a nested observation or a batch of observations."""
    for step in path:
        obs = obs[step]
    return obs


class MaskVelocities(gymnasium.ObservationWrapper):
    """Wrapper that sets the velocities in one observation key to 0, so that the task becomes partially observed.

    The positions of the velocities are known for some environment ids (`LAYOUTS`). Raises UserError for another id, or
    if the observation does not have the size that is the default for the id.
    """

    def __init__(self, env: gymnasium.Env, key: str = "state") -> None:
        super().__init__(env)
        self.key = key
        spec = env.unwrapped.spec
        env_id = spec.id if spec is not None else type(env.unwrapped).__name__
        layout = LAYOUTS.get(env_id)
        if layout is None:
            raise UserError(
                f"env.mask_velocities=true: the velocities of {env_id} are not known"
                f"{nearest(env_id, LAYOUTS)}; supported are classic control, Box2D and MuJoCo (docs/environments.md); "
                "set env.mask_velocities=false"
            )
        assert isinstance(env.observation_space, spaces.Dict)
        (size,) = env.observation_space[key].shape or (1,)
        if size != layout.size:
            raise UserError(
                f"env.mask_velocities=true: observations of {env_id} have {layout.size} numbers by default, but here "
                f"they have {size}; remove the keys of env.wrapper that change them"
            )
        self.velocities = np.array(layout.velocities)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Replace the observation by a copy in which the velocities are 0."""
        state = observation[self.key].copy()
        state[self.velocities] = 0
        observation[self.key] = state
        return observation


class ActionsAsObservation(gymnasium.Wrapper):
    """Wrapper that adds past actions to the observation, as key `action_stack`: float32, oldest first.

    Discrete actions are one-hot encoded. At the start of an episode, the stack is filled with the action `noop`. The
    stack contains every d-th of the last n·d actions, including the newest one.

    Args:
        env: environment with flat dict observations.
        num_stack: n, number of actions in the stack.
        noop: action that fills the stack at the start of an episode: one number, or one per sub-action.
        dilation: d, distance between two actions of the stack, counted in actions.

    Raises:
        UserError: The no-op is not an action of this environment, or the stack is too large.
    """

    def __init__(self, env: gymnasium.Env, num_stack: int, noop: Any, dilation: int) -> None:
        super().__init__(env)
        self.dilation = dilation
        action = action_spec(env.action_space)
        if action.parts:
            raise UserError(
                f"env.actions_as_observation.num_stack={num_stack}: past actions of a "
                f"{type(env.action_space).__name__} action space cannot be observed; set "
                "env.actions_as_observation.num_stack=-1"
            )
        self.nvec = None if action.continuous else np.array(action.nvec)
        self.start = None if action.continuous else np.array(action.start)
        self.noop = self.encode(self._check_noop(noop, math.prod(action.shape)))
        asked = f"env.actions_as_observation.num_stack={num_stack}" + f" with dilation={dilation}" * (dilation > 1)
        rows = num_stack * dilation
        refuse_large(asked, f"a stack of {rows:,} past actions", rows * self.noop.size * self.noop.itemsize)
        self.history = np.tile(self.noop, (num_stack * dilation, 1))  # the newest action is row -1
        low, high = np.float32(0), np.float32(1)
        if action.continuous:
            low, high = (np.tile(bound, num_stack).astype(np.float32) for bound in (action.low, action.high))
        box = spaces.Box(low, high, (self.noop.size * num_stack,), np.float32)
        self.observation_space = _with_key(env.observation_space, "action_stack", box, "actions_as_observation")

    def _check_noop(self, noop: Any, size: int) -> np.ndarray:
        try:
            flat = np.asarray(noop, np.float64).reshape(-1)
        except (TypeError, ValueError):
            flat = np.zeros(0)
        if flat.size not in (1, size):
            raise UserError(
                f"env.actions_as_observation.noop={noop}: must be one number or a list of {size} (one per sub-action)"
            )
        flat = np.broadcast_to(flat, (size,))
        if self.nvec is not None and self.start is not None:
            index = flat - self.start
            if (index != np.floor(index)).any() or (index < 0).any() or (index >= self.nvec).any():
                allowed = ", ".join(f"{s}..{s + n - 1}" for s, n in zip(self.start, self.nvec, strict=True))
                raise UserError(
                    f"env.actions_as_observation.noop={noop}: not an action of this environment; allowed are {allowed}"
                )
        return flat

    def encode(self, action: Any) -> np.ndarray:
        """Encode one action as a flat float32 vector."""
        flat = np.asarray(action).reshape(-1)
        if self.nvec is None:
            return flat.astype(np.float32)
        offsets = np.cumsum(self.nvec) - self.nvec
        row = np.zeros(int(self.nvec.sum()), np.float32)
        row[(offsets + flat - self.start).astype(np.int64)] = 1
        return row

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode and fill the history with the action `noop`."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.history[:] = self.noop
        obs["action_stack"] = self.show()
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action and append it to the history."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.history[:-1] = self.history[1:]
        self.history[-1] = self.encode(action)
        obs["action_stack"] = self.show()
        return obs, reward, terminated, truncated, info

    def show(self) -> np.ndarray:
        """Return the past actions that are part of the observation, concatenated to one vector."""
        return self.history[self.dilation - 1 :: self.dilation].reshape(-1).copy()


class RewardAsObservation(gymnasium.Wrapper):
    """Wrapper that adds the last reward to the observation as key `reward`: float32 (1,), 0 when an episode starts.

    Raises UserError if the observations already have a key `reward`.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        # No bounds: with action repeat, the sum of rewards can exceed the range that the environment declares.
        box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = _with_key(env.observation_space, "reward", box, "reward_as_observation")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; `reward` in its first observation is 0."""
        obs, info = self.env.reset(seed=seed, options=options)
        obs["reward"] = np.zeros(1, np.float32)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action and add its reward to the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs["reward"] = np.array([reward], np.float32)
        return obs, reward, terminated, truncated, info


class ActionMaskObservation(gymnasium.Wrapper):
    """Wrapper that adds an action mask to the observation, as key `action_mask`; 1 = the choice is allowed.

    Args:
        env: environment with flat dict observations and discrete actions, or parts of actions.
        from_info: True: the mask is `info["action_mask"]`. False: it is the result of the environment's method
            `action_masks()`. Both have one entry for each choice of each sub-action.

    Raises:
        UserError: The actions are continuous, or the observations already have a key `action_mask`.
    """

    def __init__(self, env: gymnasium.Env, from_info: bool) -> None:
        super().__init__(env)
        self.from_info, action = from_info, action_spec(env.action_space)
        if not action.choices:
            raise UserError(
                f"env.action_mask_from_info=true: action masks need discrete actions, but the action space is "
                f"{env.action_space}; set env.action_mask_from_info=false"
            )
        self.size = sum(action.choices)
        mask = spaces.MultiBinary(self.size)
        self.observation_space = _with_key(env.observation_space, "action_mask", mask, "action_mask_from_info")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode and add the mask to its first observation."""
        obs, info = self.env.reset(seed=seed, options=options)
        obs["action_mask"] = self._mask(info, False)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action and add the mask to the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs["action_mask"] = self._mask(info, bool(terminated or truncated))
        return obs, reward, terminated, truncated, info

    def _mask(self, info: dict[str, Any], ended: bool) -> np.ndarray:
        if not self.from_info:
            return np.asarray(self.env.get_wrapper_attr("action_masks")()).reshape(-1)
        if "action_mask" in info:
            return np.asarray(info["action_mask"]).reshape(-1)
        if not ended:
            raise EnvironmentFault("env.action_mask_from_info=true, but info has no key action_mask")
        return np.zeros(self.size, np.int8)  # no action follows


def gives_masks(env: gymnasium.Env) -> bool:
    """Return True if an environment with flat dict observations has no masks in them, but a method `action_masks()`."""
    parts: Mapping[str, spaces.Space[Any]] = getattr(env.observation_space, "spaces", {})
    kinds = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    discrete = any(isinstance(leaf, kinds) for _, leaf in named_leaves(env.action_space))
    if not discrete or any(kind_of(key, space) == "mask" for key, space in parts.items()):
        return False
    return env.has_wrapper_attr("action_masks") and callable(env.get_wrapper_attr("action_masks"))


def _with_key(space: spaces.Space[Any], key: str, added: spaces.Space[Any], option: str) -> spaces.Dict:
    parts: Mapping[str, spaces.Space[Any]] = space.spaces if isinstance(space, spaces.Dict) else {}
    if key in parts:
        raise UserError(
            f"env.{option}: would add the observation {key!r}, but this environment already has one with this name; "
            f"remove env.{option} from the config"
        )
    return spaces.Dict({**parts, key: added})
