"""Three dummy environments to test a pipeline, with SheepRL's names, spaces and episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.envs.suites.suite import Suite


class Dummy(gymnasium.Env):
    """Environment for tests of a pipeline: observations show the number of actions taken, and the reward is always 0.

    Args:
        action: action space.
        image_size: shape of the image, uint8; every pixel is the number of actions modulo 256.
        n_steps: the episode terminates with action number `n_steps` + 1.
        vector_shape: shape of the vector, float32; each element is the number of actions.
        dict_obs_space: if True, observations have the keys `rgb` and `state`; otherwise they are only the vector.
        render_mode: None, or "rgb_array".

    Attributes:
        metadata: render modes and frame rate, as in Gymnasium.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - Gymnasium's own form

    def __init__(
        self,
        action: spaces.Space[Any],
        image_size: Sequence[int] = (3, 64, 64),
        n_steps: int = 128,
        vector_shape: Sequence[int] = (10,),
        dict_obs_space: bool = True,
        render_mode: str | None = None,
    ) -> None:
        numbers = spaces.Box(-20, 20, tuple(vector_shape), np.float32)
        picture = spaces.Box(0, 255, tuple(image_size), np.uint8)
        self.action_space = action
        self.observation_space = spaces.Dict({"rgb": picture, "state": numbers}) if dict_obs_space else numbers
        self.image_size, self.vector_shape = tuple(image_size), tuple(vector_shape)
        self.n_steps, self.dict_obs_space, self.render_mode = n_steps, dict_obs_space, render_mode
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; all episodes have the same observations."""
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count the action; raise ValueError if it is not in the action space."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not an action of {self.action_space}")
        ends = self.count == self.n_steps
        self.count += 1
        return self._obs(), 0.0, ends, False, {}

    def render(self) -> Any:
        """Return an image [64, 64, 3] uint8 with the pixel value of the observation."""
        return np.full((64, 64, 3), self.count % 256, np.uint8)

    def _obs(self) -> Any:
        numbers = np.full(self.vector_shape, self.count, np.float32)
        if not self.dict_obs_space:
            return numbers
        return {"rgb": np.full(self.image_size, self.count % 256, np.uint8), "state": numbers}


class ContinuousDummy(Dummy):
    """Dummy environment with `action_dim` unbounded real action elements; `others`: arguments of `Dummy`."""

    def __init__(self, action_dim: int = 2, **others: Any) -> None:
        super().__init__(spaces.Box(-np.inf, np.inf, (action_dim,), np.float32), **others)


class DiscreteDummy(Dummy):
    """Dummy environment with `action_dim` discrete actions and short episodes; `others`: arguments of `Dummy`."""

    def __init__(self, action_dim: int = 2, n_steps: int = 4, **others: Any) -> None:
        super().__init__(spaces.Discrete(action_dim), n_steps=n_steps, **others)


class MultiDiscreteDummy(Dummy):
    """Dummy environment with one discrete sub-action per entry of `action_dims`; `others`: arguments of `Dummy`."""

    def __init__(self, action_dims: Sequence[int] = (2, 2), **others: Any) -> None:
        super().__init__(spaces.MultiDiscrete(list(action_dims)), **others)


CLASSES: Mapping[str, type[Dummy]] = {
    "continuous_dummy": ContinuousDummy,
    "discrete_dummy": DiscreteDummy,
    "multidiscrete_dummy": MultiDiscreteDummy,
}


class DummySuite(Suite):
    """Suite of the three dummy environments, with SheepRL's ids."""

    name = "dummy"
    note = "images and vectors that show the step count, reward 0; to test a pipeline"
    targets = ("sheeprl.utils.env.get_dummy_env",)

    def ids(self) -> Sequence[str]:
        """Return SheepRL's ids of the three environments."""
        return tuple(CLASSES)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create an environment of the class that has this id."""
        return CLASSES[env_id](**arguments, render_mode=render_mode)

    def source(self, env_id: str) -> Any:
        """Return the environment class of an id."""
        return CLASSES[env_id]
