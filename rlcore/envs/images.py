"""Wrappers of image observations: their size, their colours, and how many frames of them an agent sees."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.envs.spaces import is_plane, kind_of, obs_spaces, refuse_large
from rlcore.errors import UserError
from rlcore.spec import ArraySpec, Window

LUMA = np.array([299, 587, 114])  # thousandths of red, green and blue (ITU-R BT.601)


def image_keys(env: gymnasium.Env) -> dict[str, ArraySpec]:
    """The image keys of an environment whose observations are a flat dict."""
    found = {key: space for key, space in obs_spaces(env).items() if kind_of(key, space) == "image"}
    return {key: ArraySpec(tuple(space.shape), str(space.dtype)) for key, space in found.items()}


class GrayChannel(gymnasium.ObservationWrapper):
    """Gray images [height, width] as [height, width, 1]; all else of the flat dict as it is."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        parts = obs_spaces(env)
        self.planes = [key for key, space in parts.items() if is_plane(space)]
        parts |= {key: spaces.Box(0, 255, (*parts[key].shape, 1), np.uint8) for key in self.planes}
        self.observation_space = spaces.Dict(parts)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The dict with a dimension for the channel."""
        return observation | {key: observation[key][..., None] for key in self.planes}


class ScreenSize(gymnasium.ObservationWrapper):
    """Images of `side` × `side` pixels, each the mean of the area that it covers; None = as they come.

    Args:
        env: the environment, its observations flat dicts.
        side: in pixels.
        grayscale: one channel, the luminance, instead of red, green and blue.

    Raises:
        UserError: grayscale of an image that has neither one nor three channels.
    """

    def __init__(self, env: gymnasium.Env, side: int | None, grayscale: bool) -> None:
        super().__init__(env)
        self.side, self.grayscale = side, grayscale
        self.images: dict[str, bool] = {}  # key of those that change -> whether its channels come first
        parts = obs_spaces(env)
        for key, spec in image_keys(env).items():
            channels = spec.shape[-3] if spec.channels_first else spec.shape[-1]
            if grayscale and channels not in (1, 3):
                raise UserError(f"env.grayscale=true: image {key!r} has {channels} channels, neither 3 nor 1")
            space, shape = parts[key], self.shape_of(spec)
            refuse_large(
                f"env.screen_size={side}",
                f"image {key!r} of shape {list(shape)}",
                math.prod(shape) * space.dtype.itemsize,
            )
            if shape == spec.shape:  # a suite may have made them so itself
                continue
            self.images[key] = spec.channels_first
            parts[key] = spaces.Box(space.low.min(), space.high.max(), shape, space.dtype.type)
        self.observation_space = spaces.Dict(parts)

    def shape_of(self, spec: ArraySpec) -> tuple[int, ...]:
        """Return the shape that `change` gives an image."""
        height, width = spec.pixels if self.side is None else (self.side, self.side)
        channels = spec.shape[-3] if spec.channels_first else spec.shape[-1]
        channels = 1 if self.grayscale and channels == 3 else channels
        pixels = (channels, height, width) if spec.channels_first else (height, width, channels)
        return (*spec.shape[:-3], *pixels)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The dict with its images as they are to be."""
        for key, channels_first in self.images.items():
            observation[key] = self.change(observation[key], channels_first)
        return observation

    def change(self, image: np.ndarray, channels_first: bool) -> np.ndarray:
        """One image, or frames of one, as an agent is to see it; channels stay where they are."""
        planes = image if channels_first else np.moveaxis(image, -1, -3)
        if self.side is not None and planes.shape[-2:] != (self.side, self.side):
            planes = resize(planes, self.side)
        if self.grayscale and planes.shape[-3] == 3:
            planes = luminance(planes)
        return np.ascontiguousarray(planes if channels_first else np.moveaxis(planes, -3, -1))


def resize(planes: np.ndarray, side: int) -> np.ndarray:
    """Planes [..., height, width] as [..., side, side]; each pixel is the mean of the area it covers."""
    from PIL import Image  # of every worker's start it would be a tenth

    flat = np.ascontiguousarray(planes).reshape(-1, *planes.shape[-2:])
    kept = np.uint8 if planes.dtype == np.uint8 else np.float32  # what Pillow knows
    drawn = [Image.fromarray(plane.astype(kept)).resize((side, side), Image.Resampling.BOX) for plane in flat]
    return np.stack([np.asarray(plane) for plane in drawn]).astype(planes.dtype).reshape(*planes.shape[:-2], side, side)


def luminance(planes: np.ndarray) -> np.ndarray:
    """Red, green and blue [..., 3, height, width] as their luminance [..., 1, height, width], of the same dtype."""
    sums = np.tensordot(LUMA, np.moveaxis(planes, -3, 0), 1)[..., None, :, :]
    return (((sums + 500) // 1000) if planes.dtype == np.uint8 else sums / 1000).astype(planes.dtype)


class FrameStack(gymnasium.Wrapper):
    """Says that of every image so many frames are to be seen at once; the frames come one at a time, as they were.

    Whoever reads them stacks them (`rlcore.data.history`), so that each is kept once.

    Args:
        env: the environment, its observations flat dicts.
        frames: how many.
        dilation: the distance between two of them, in observations.
    """

    def __init__(self, env: gymnasium.Env, frames: int, dilation: int) -> None:
        super().__init__(env)
        self.frames, self.dilation = frames, dilation
        rows = (frames - 1) * dilation + 1
        asked = f"env.frame_stack={frames}" + f" with env.frame_stack_dilation={dilation}" * (dilation > 1)
        for key, spec in image_keys(env).items():
            one = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
            refuse_large(asked, f"the last {rows:,} images {key!r}", rows * one)

    @property
    def frame_windows(self) -> dict[str, Window]:
        """Window of every image key."""
        return dict.fromkeys(image_keys(self.env), Window(self.frames, self.dilation))
