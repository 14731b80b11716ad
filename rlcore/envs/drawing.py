"""Rendered images as an observation, for environments that do not return images themselves."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.envs.spaces import array_spec, is_plane, kind_of, obs_spaces
from rlcore.envs.suites.suite import Suite, open_env
from rlcore.envs.wrappers import flat_leaves, layers
from rlcore.errors import UserError, first_line
from rlcore.spec import IMAGES_ARE
from rlcore.user_code import is_failure, spell_error

_SHAPES: dict[str, tuple[int, ...] | None] = {}  # cache: (environment, arguments) -> shape of its rendered image


def drawn_shape(suite: Suite, env_id: str, wrapper: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    """Return the shape of an environment's rendered image, or None if its observations already contain an image.

    The shape is measured once per process, in a separate instance of the environment, because an environment must be
    reset before it can be rendered.

    Args:
        suite: the suite of the environment.
        env_id: the id in that suite.
        wrapper: arguments of the environment.
        key: observation key that the rendered image gets.

    Returns:
        [height, width, 3], or None.

    Raises:
        UserError: The environment has no image observation and cannot be rendered. Also raised if the environment has
            an observation `key` whose space is not that of an image.
    """
    name = repr((suite.name, env_id, sorted(wrapper.items(), key=str)))
    if name not in _SHAPES:
        with closing(open_env(suite, env_id, wrapper)) as env:
            parts = flat_leaves(env.observation_space)
            has_image = any(is_plane(space) or kind_of(part, space) == "image" for part, _, space in parts)
            if not has_image:
                _refuse_undeclared(env_id, key, {part: space for part, path, space in parts if not path or part == key})
        _SHAPES[name] = None if has_image else _draw_once(suite, env_id, wrapper, key)
    return _SHAPES[name]


def _refuse_undeclared(env_id: str, key: str, parts: Mapping[str, spaces.Space[Any]]) -> None:
    """Raise UserError if an observation has the shape of an image, but the dtype or bounds of its space do not fit.

    Such an observation is treated as a vector. Without this error, a rendered image would be added as the observation
    `key`, although the user probably wants to use the existing observation.

    Args:
        env_id: id of the environment, for the message.
        key: image key that the config asks for.
        parts: observation key -> space.
    """
    for part, space in parts.items():
        if isinstance(space, spaces.Box) and (spec := array_spec(part, space)).looks_like_image:
            raise UserError(
                f"algo.cnn_keys.encoder=[{key}]: the observation {part!r} of {env_id} ({spec.describe()}) is not an "
                f"image: {IMAGES_ARE}; change the dtype or bounds of {part!r} in the environment's observation space"
            )


def _draw_once(suite: Suite, env_id: str, wrapper: Mapping[str, Any], key: str) -> tuple[int, ...]:
    message = f"algo.cnn_keys.encoder=[{key}]: {env_id} has no image observation, and it cannot be rendered here"
    try:
        with closing(open_env(suite, env_id, wrapper, "rgb_array")) as env:
            env.reset(seed=0)
            picture: Any = env.render()
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = (isinstance(error, Exception) and first_line(error)) or spell_error(error)
        raise UserError(f"{message} ({reason}); set algo.cnn_keys.encoder=[]") from error
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.dtype != np.uint8:
        raise UserError(f"{message} as an array [height, width, 3] of uint8; set algo.cnn_keys.encoder=[]")
    return picture.shape


class DrawnImage(gymnasium.ObservationWrapper):
    """Wrapper that adds the rendered image of an environment as a key of its flat dict of observations.

    Gymnasium has a similar wrapper, AddRenderObservation. It resets the environment without a seed when it is created.
    `DrawnImage` does not reset the environment, because the shape of the image is an argument.

    Args:
        env: environment with flat dict observations.
        key: observation key of the image.
        shape: shape of the image, from `drawn_shape`.

    Attributes:
        draws: if False, the environment is not rendered and the image is black. This saves time if an episode is
            replayed and its images are not needed.
    """

    draws: bool

    def __init__(self, env: gymnasium.Env, key: str, shape: tuple[int, ...]) -> None:
        super().__init__(env)
        self.key, self.shape, self.draws = key, shape, True
        self.observation_space = spaces.Dict({**obs_spaces(env), key: spaces.Box(0, 255, shape, np.uint8)})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Add the current image to the dict of observations."""
        observation[self.key] = self.env.render() if self.draws else np.zeros(self.shape, np.uint8)
        return observation


def stop_drawing(env: gymnasium.Env, stopped: bool) -> None:
    """Switch off the rendering of image observations if `stopped` is True; switch it on otherwise."""
    for layer in layers(env):
        if isinstance(getattr(layer, "draws", None), bool):
            layer.draws = not stopped


class SparselyDrawn(gymnasium.Wrapper):
    """Wrapper that renders the image observation only at each reset and each `EVERY`-th step; other images are black.

    The wrapper saves time when an episode is compared with its replay, because some of the images are sufficient.
    """

    EVERY = 32

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        self.count = 0
        stop_drawing(self.env, False)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Take one action."""
        self.count += 1
        stop_drawing(self.env, self.count % self.EVERY != 0)
        return self.env.step(action)
