"""Pictures of image observations, to check what the network sees: images after all wrappers, with stacked frames."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw

from rlcore.spec import ArraySpec, EnvSpec

MOMENT = 40  # rows after the start of an episode, when there usually is some motion
SIDE, GAP, LINE = 168, 6, 18  # pixels: minimum side of a frame, gap between frames, height of a line of text


def draw_images(rows: Mapping[str, np.ndarray], spec: EnvSpec, keys: Sequence[str]) -> bytes:
    """Draw the image observations that the network receives at one time step of a recorded episode.

    The time step is in the first episode of the first environment, usually 40 steps after its start.

    Args:
        rows: recorded data: `obs/<key>` [T, B, *shape] for each of `keys`, and `is_first` [T, B] bool.
        spec: spec of the environment, which defines how many frames of each key are stacked.
        keys: image keys, at least one.

    Returns:
        A PNG file: for each key, a line of text and a row of frames with the oldest on the left.
    """
    row = _moment(rows["is_first"][:, 0])
    strips = [(_words(key, spec.obs[key]), _panels(rows[f"obs/{key}"][:, 0], spec.obs[key], row)) for key in keys]
    width = max(sum(panel.width + GAP for panel in panels) for _, panels in strips) + GAP
    height = sum(LINE + GAP + panels[0].height + GAP for _, panels in strips)
    page = Image.new("RGB", (max(width, 7 * max(len(words) for words, _ in strips)), height), "white")
    pen, top = ImageDraw.Draw(page), 0
    for words, panels in strips:
        pen.text((GAP, top + GAP // 2), words, fill="black")
        left, top = GAP, top + LINE
        for panel in panels:
            page.paste(panel, (left, top + GAP // 2))
            left += panel.width + GAP
        top += panels[0].height + 2 * GAP
    file = io.BytesIO()
    page.save(file, "PNG", optimize=True)
    return file.getvalue()


def _moment(is_first: np.ndarray) -> int:
    """Return the index of the time step to draw: `MOMENT`, or the last one of the first episode if it is shorter."""
    starts = np.flatnonzero(is_first[1:]) + 1
    end = int(starts[0]) if len(starts) else len(is_first)
    return min(MOMENT, end - 1)


def _words(key: str, spec: ArraySpec) -> str:
    frames = "" if spec.window is None else f"{spec.window.frames} frames of "
    apart = "" if spec.window is None or spec.window.dilation == 1 else f", {spec.window.dilation} steps apart"
    return f"{key}: {frames}{' x '.join(map(str, spec.shape))} {spec.dtype}{apart}"


def _panels(rows: np.ndarray, spec: ArraySpec, row: int) -> list[Image.Image]:
    """Return the stacked frames that the agent receives at time step `row` of the first episode, oldest first.

    `rows` [T, *shape] are the image observations of one key in one environment.
    """
    back = [0] if spec.window is None else [i * spec.window.dilation for i in range(spec.window.frames)]
    panels = []
    for seen in (rows[max(0, row - steps)] for steps in reversed(back)):
        for plane in seen.reshape(-1, *spec.shape[-3:]):  # an environment may also stack frames itself
            pixels = plane if not spec.channels_first else np.moveaxis(plane, -3, -1)
            parts = [pixels] if pixels.shape[-1] == 3 else list(np.moveaxis(pixels, -1, 0))
            panels += [Image.fromarray(_to_bytes(part)).convert("RGB") for part in parts]
    times = max(1, SIDE // min(panels[0].size))
    return [panel.resize((times * panel.width, times * panel.height), Image.Resampling.NEAREST) for panel in panels]


def _to_bytes(pixels: np.ndarray) -> np.ndarray:
    """Convert pixels to uint8; other dtypes are scaled so that the smallest value is black and the largest is white."""
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    low, high = float(pixels.min()), float(pixels.max())
    return ((pixels - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
