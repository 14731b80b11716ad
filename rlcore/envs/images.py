"""Wrappers of image observations: channel axis, size, color and frame stack."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.envs.spaces import is_plane, kind_of, obs_spaces, refuse_large
from rlcore.errors import UserError
from rlcore.spec import ArraySpec, Window

LUMA = np.array([299, 587, 114])  # weights of red, green and blue in thousandths (ITU-R BT.601)


def image_keys(env: gymnasium.Env) -> dict[str, ArraySpec]:
    """Return observation key -> spec (shape and dtype) of each image; the observations of `env` are a flat dict."""
    found = {key: space for key, space in obs_spaces(env).items() if kind_of(key, space) == "image"}
    return {key: ArraySpec(tuple(space.shape), str(space.dtype)) for key, space in found.items()}


class GrayChannel(gymnasium.ObservationWrapper):
    """Wrapper that reshapes gray images [height, width] to [height, width, 1]; other observations are unchanged."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        parts = obs_spaces(env)
        self.planes = [key for key, space in parts.items() if is_plane(space)]
        parts |= {key: spaces.Box(0, 255, (*parts[key].shape, 1), np.uint8) for key in self.planes}
        self.observation_space = spaces.Dict(parts)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Add the channel axis to the gray images."""
        return observation | {key: observation[key][..., None] for key in self.planes}


class ScreenSize(gymnasium.ObservationWrapper):
    """Wrapper that resizes images to `side` × `side` pixels by area averaging, and optionally converts them to gray.

    Args:
        env: environment with flat dict observations.
        side: height and width of the resized images, in pixels; if None, the size is not changed.
        grayscale: if True, the red, green and blue channels are converted to one channel, the luminance.

    Raises:
        UserError: `grayscale` is set, and an image has neither one nor three channels.
    """

    def __init__(self, env: gymnasium.Env, side: int | None, grayscale: bool) -> None:
        super().__init__(env)
        self.side, self.grayscale = side, grayscale
        self.images: dict[str, bool] = {}  # key of an image that changes -> True if it is channels-first
        parts = obs_spaces(env)
        for key, spec in image_keys(env).items():
            channels = spec.shape[-3] if spec.channels_first else spec.shape[-1]
            if grayscale and channels not in (1, 3):
                raise UserError(
                    f"env.grayscale=true: image {key!r} has {channels} channels, but only images with 3 channels or 1 "
                    "can be converted; set env.grayscale=false"
                )
            space, shape = parts[key], self.shape_of(spec)
            refuse_large(
                f"env.screen_size={side}",
                f"image {key!r} of shape {list(shape)}",
                math.prod(shape) * space.dtype.itemsize,
            )
            if shape == spec.shape:  # for example because the suite has resized it
                continue
            self.images[key] = spec.channels_first
            parts[key] = spaces.Box(space.low.min(), space.high.max(), shape, space.dtype.type)
        self.observation_space = spaces.Dict(parts)

    def shape_of(self, spec: ArraySpec) -> tuple[int, ...]:
        """Return the shape that `change` gives to an image with the spec `spec`."""
        height, width = spec.pixels if self.side is None else (self.side, self.side)
        channels = spec.shape[-3] if spec.channels_first else spec.shape[-1]
        channels = 1 if self.grayscale and channels == 3 else channels
        pixels = (channels, height, width) if spec.channels_first else (height, width, channels)
        return (*spec.shape[:-3], *pixels)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Resize and convert the images in a dict of observations."""
        for key, channels_first in self.images.items():
            observation[key] = self.change(observation[key], channels_first)
        return observation

    def change(self, image: np.ndarray, channels_first: bool) -> np.ndarray:
        """Resize one image or a stack of frames and convert it to gray, as configured.

        Images are [..., channels, height, width] if `channels_first`, otherwise [..., height, width, channels].
        """
        planes = image if channels_first else np.moveaxis(image, -1, -3)
        if self.side is not None and planes.shape[-2:] != (self.side, self.side):
            planes = resize(planes, self.side)
        if self.grayscale and planes.shape[-3] == 3:
            planes = luminance(planes)
        return np.ascontiguousarray(planes if channels_first else np.moveaxis(planes, -3, -1))


def resize(planes: np.ndarray, side: int) -> np.ndarray:
    """Resize planes [..., height, width] to [..., side, side]; each pixel is the mean of the area that it covers."""
    from PIL import Image  # imported here, because it takes a tenth of a worker's start

    flat = np.ascontiguousarray(planes).reshape(-1, *planes.shape[-2:])
    kept = np.uint8 if planes.dtype == np.uint8 else np.float32  # types that Pillow supports
    drawn = [Image.fromarray(plane.astype(kept)).resize((side, side), Image.Resampling.BOX) for plane in flat]
    return np.stack([np.asarray(plane) for plane in drawn]).astype(planes.dtype).reshape(*planes.shape[:-2], side, side)


def luminance(planes: np.ndarray) -> np.ndarray:
    """Convert RGB planes [..., 3, height, width] to luminance [..., 1, height, width] of the same dtype."""
    sums = np.tensordot(LUMA, np.moveaxis(planes, -3, 0), 1)[..., None, :, :]
    return (((sums + 500) // 1000) if planes.dtype == np.uint8 else sums / 1000).astype(planes.dtype)


class FrameStack(gymnasium.Wrapper):
    """Wrapper that declares how many past frames of each image the agent sees; it does not stack the frames.

    The observations of this wrapper are still single frames. `rlcore.data.history` stacks the frames when they are read
    from a rollout or replay buffer, so each frame is stored only once.

    Args:
        env: environment with flat dict observations.
        frames: number of stacked frames.
        dilation: distance between two stacked frames, counted in observations.
    """

    def __init__(self, env: gymnasium.Env, frames: int, dilation: int) -> None:
        super().__init__(env)
        self.frames, self.dilation = frames, dilation
        rows = (frames - 1) * dilation + 1
        asked = f"env.frame_stack={frames}" + f" with env.frame_stack_dilation={dilation}" * (dilation > 1)
        for key, spec in image_keys(env).items():
            one = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
            refuse_large(asked, f"a stack of the last {rows:,} images {key!r}", rows * one)

    @property
    def frame_windows(self) -> dict[str, Window]:
        """Return image key -> `Window` (number of frames, and distance between them)."""
        return dict.fromkeys(image_keys(self.env), Window(self.frames, self.dilation))
