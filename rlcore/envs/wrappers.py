"""Wrappers, one class each, in the order in which `make` puts them around an environment."""

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
from rlcore.envs.spaces import action_spec, refuse_large
from rlcore.envs.velocities import LAYOUTS
from rlcore.errors import UserError

OURS = __name__, "rlcore.envs.images"  # where the wrappers are that `make` puts around an environment


def layers(env: Any) -> Iterator[Any]:
    """The wrappers of an environment from the outside in, then the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


class NormalizeAction(TransformAction):
    """Every action that is bounded on both sides shown as -1 to 1; what rounds beyond the bounds is clipped.

    Elements with a single value, or without two finite bounds, are shown as they are.

    A UserError where actions are no Box of real numbers.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        space = env.action_space
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
            raise UserError(
                f"env.normalize_actions=true: actions are {space}, not a Box of real numbers; set it to false"
            )
        dtype: Any = space.dtype.type
        closed, finite = space.low == space.high, np.isfinite(space.low) & np.isfinite(space.high)
        low, high = (np.where(finite, edge, side).astype(dtype) for edge, side in ((-1, space.low), (1, space.high)))
        # A closed element has no scale: it is left alone here, and `action` clips it to its value.
        scaled = spaces.Box(np.where(closed, low, space.low), np.where(closed, high, space.high), dtype=dtype)
        _, _, backward = rescale_box(scaled, low, high)
        shown = spaces.Box(np.where(closed, space.low, low), np.where(closed, space.high, high), dtype=dtype)
        super().__init__(env, backward, shown)

    def action(self, action: Any) -> np.ndarray:
        """One action in the environment's own bounds and type."""
        space: Any = self.env.action_space
        return np.clip(super().action(action), space.low, space.high).astype(space.dtype, copy=False)


class ActionRepeat(gymnasium.Wrapper):
    """Take every action `amount` times (at least 1), fewer when the episode ends; rewards are summed."""

    def __init__(self, env: gymnasium.Env, amount: int) -> None:
        super().__init__(env)
        self.amount = amount

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The last observation of the repeats and the sum of their rewards."""
        total = 0.0
        for _ in range(self.amount):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


def bare_env(env: gymnasium.Env) -> gymnasium.Env:
    """An environment from `make` as its suite made it, with the wrappers that Gymnasium and its suite put around it."""
    return [layer.env for layer in layers(env) if type(layer).__module__ in OURS][-1]


def time_limit(env: gymnasium.Env) -> int | None:
    """Longest possible episode in actions, by the time limits around an environment; None without any."""
    limits, repeat = [], 1
    for layer in layers(env):
        if isinstance(layer, ActionRepeat):
            repeat *= layer.amount  # limits further in count environment steps
        if isinstance(layer, TimeLimit):
            limits.append(math.ceil(layer._max_episode_steps / repeat))  # pyright: ignore[reportPrivateUsage]
    return min(limits, default=None)


class FlatDictObservation(gymnasium.ObservationWrapper):
    """Observations as one flat dict: `key` for a bare one, `state_0`… for a tuple, `a.b` for nested dicts.

    Parts without a single number are left out. A UserError if nothing is left, or if two parts get the same key.
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
                raise UserError(f"two observations of this environment get the key {part!r}; rename one in its space")
            flat[part], self.paths[part] = leaf, path
        if not flat:
            raise UserError(
                f"observation space {space}: there is nothing in it to observe; give it at least one number"
            )
        self.observation_space = spaces.Dict(flat)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the base class, but without another call for a bare observation: cheap environments would feel it."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return {self.key: obs} if self.bare else self.observation(obs), reward, terminated, truncated, info

    def observation(self, observation: Any) -> dict[str, Any]:
        """A new flat dict with the leaves of an observation."""
        if self.bare:
            return {self.key: observation}
        return {key: follow(observation, path) for key, path in self.paths.items()}


Leaf = tuple[str, tuple[Any, ...], spaces.Space[Any]]  # flat key, path inside the observation, its space


def flat_leaves(space: spaces.Space[Any], key: str = "", path: tuple[Any, ...] = ()) -> list[Leaf]:
    """The leaves of a space in order: the key each has in a flat dict, its path inside an observation, its space."""
    if isinstance(space, spaces.Dict):
        parts = [(f"{key}.{name}" if key else str(name), name, inner) for name, inner in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        parts = [(f"{key or 'state'}_{i}", i, inner) for i, inner in enumerate(space.spaces)]
    else:
        return [(key or "state", path, space)]
    return [leaf for name, step, inner in parts for leaf in flat_leaves(inner, name, (*path, step))]


def follow(obs: Any, path: tuple[Any, ...]) -> Any:
    """The leaf of an observation, or of a batch of them, at a path inside it."""
    for step in path:
        obs = obs[step]
    return obs


class MaskVelocities(gymnasium.ObservationWrapper):
    """Zero the velocities in one key of a flat dict, which makes the task partly observed.

    A UserError where no velocities are known for the id, or its observation is another than the id's own.
    """

    def __init__(self, env: gymnasium.Env, key: str = "state") -> None:
        super().__init__(env)
        self.key = key
        spec = env.unwrapped.spec
        env_id = spec.id if spec is not None else type(env.unwrapped).__name__
        layout = LAYOUTS.get(env_id)
        if layout is None:
            raise UserError(
                f"env.mask_velocities=true: which numbers of {env_id} are velocities is not known"
                f"{nearest(env_id, LAYOUTS)}; it is of classic control, Box2D and MuJoCo (docs/environments.md)"
            )
        assert isinstance(env.observation_space, spaces.Dict)
        (size,) = env.observation_space[key].shape or (1,)
        if size != layout.size:
            raise UserError(
                f"env.mask_velocities=true: {env_id} has observations of {layout.size} numbers unless env.wrapper "
                f"changes them, here of {size}; leave out what does"
            )
        self.velocities = np.array(layout.velocities)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Observation with its key masked in a copy."""
        state = observation[self.key].copy()
        state[self.velocities] = 0
        observation[self.key] = state
        return observation


class ActionsAsObservation(gymnasium.Wrapper):
    """Past actions as key `action_stack` of a flat dict: float32, oldest first, one-hot for discrete actions.

    At an episode's start all of them are the no-op. With dilation d only every d-th of the last n·d actions is
    shown, the newest always.

    Args:
        env: the environment, its observations already flat dicts.
        num_stack: how many actions are shown.
        noop: the action before the first: one number, or one for every sub-action.
        dilation: distance in actions between those shown.

    Raises:
        UserError: a no-op that is not an action of this environment.
    """

    def __init__(self, env: gymnasium.Env, num_stack: int, noop: Any, dilation: int) -> None:
        super().__init__(env)
        self.dilation = dilation
        action = action_spec(env.action_space)
        self.nvec = None if action.continuous else np.array(action.nvec)
        self.start = None if action.continuous else np.array(action.start)
        self.noop = self.encode(self._check_noop(noop, math.prod(action.shape)))
        asked = f"env.actions_as_observation.num_stack={num_stack}" + f" with dilation={dilation}" * (dilation > 1)
        rows = num_stack * dilation
        refuse_large(asked, f"a stack of {rows:,} past actions", rows * self.noop.size * self.noop.itemsize)
        self.history = np.tile(self.noop, (num_stack * dilation, 1))  # row -1 is the newest
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
                f"env.actions_as_observation.noop={noop}: must be one number or a list of {size}, one a sub-action"
            )
        flat = np.broadcast_to(flat, (size,))
        if self.nvec is not None and self.start is not None:
            index = flat - self.start
            if (index != np.floor(index)).any() or (index < 0).any() or (index >= self.nvec).any():
                allowed = ", ".join(f"{s}..{s + n - 1}" for s, n in zip(self.start, self.nvec, strict=True))
                raise UserError(f"env.actions_as_observation.noop={noop}: not an action here; allowed are {allowed}")
        return flat

    def encode(self, action: Any) -> np.ndarray:
        """One action as a flat float32 vector."""
        flat = np.asarray(action).reshape(-1)
        if self.nvec is None:
            return flat.astype(np.float32)
        offsets = np.cumsum(self.nvec) - self.nvec
        row = np.zeros(int(self.nvec.sum()), np.float32)
        row[(offsets + flat - self.start).astype(np.int64)] = 1
        return row

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Open an episode with a history of no-ops."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.history[:] = self.noop
        obs["action_stack"] = self.show()
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action and remember it."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.history[:-1] = self.history[1:]
        self.history[-1] = self.encode(action)
        obs["action_stack"] = self.show()
        return obs, reward, terminated, truncated, info

    def show(self) -> np.ndarray:
        """The actions that the observation shows, flat."""
        return self.history[self.dilation - 1 :: self.dilation].reshape(-1).copy()


class RewardAsObservation(gymnasium.Wrapper):
    """The reward that arrived with a flat dict as its key `reward`: float32 (1,), 0 at an episode's start.

    A UserError where the environment has such a key already.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        # Unbounded: repeats and other wrappers may sum rewards beyond the range an environment declares.
        box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = _with_key(env.observation_space, "reward", box, "reward_as_observation")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Open an episode; its reward is 0."""
        obs, info = self.env.reset(seed=seed, options=options)
        obs["reward"] = np.zeros(1, np.float32)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action; its reward is in the observation too."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs["reward"] = np.array([reward], np.float32)
        return obs, reward, terminated, truncated, info


def _with_key(space: spaces.Space[Any], key: str, box: spaces.Box, option: str) -> spaces.Dict:
    parts: Mapping[str, spaces.Space[Any]] = space.spaces if isinstance(space, spaces.Dict) else {}
    if key in parts:
        raise UserError(f"env.{option}: this environment has an observation {key!r} of its own; switch the option off")
    return spaces.Dict({**parts, key: box})
