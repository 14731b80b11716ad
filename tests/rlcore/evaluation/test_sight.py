"""Picture of the images that a network sees, read back pixel by pixel."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flows.stages.collect import collect
from rlcore.evaluation.sight import GAP, LINE, MOMENT, draw_images
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec, Window
from tests.runs import prepare

TOP = LINE + GAP // 2
LENGTH, SIDE = MOMENT + 20, 21  # a frame is draw eight times as large, 168 pixels
FRAMES = [GAP + frame * (168 + GAP) for frame in range(4)]  # left edges


def draw(spec: ArraySpec, image: np.ndarray, starts: tuple[int, ...] = (0,)) -> Any:
    """Return the picture [height, width, 3] of an image [T, *shape]; a second environment has zeros."""
    rows = {"obs/eye": np.stack([image, 0 * image], 1), "is_first": np.zeros((LENGTH, 2), bool)}
    rows["is_first"][list(starts), 0] = True
    action = ActionSpec("Discrete", (), "int64", (2,), (0,))
    png = draw_images(rows, EnvSpec("Painted-v0", {"eye": spec}, action), ["eye"])
    return np.asarray(Image.open(io.BytesIO(png)))


def frame_values(page: np.ndarray, count: int) -> list[int]:
    """Return the value of each frame, which has a single color."""
    found = []
    for left in FRAMES[:count]:
        frame = page[TOP : TOP + 168, left : left + 168]
        assert (frame == frame[0, 0]).all() and len(set(frame[0, 0].tolist())) == 1
        found.append(int(frame[0, 0, 0]))
    return found


@pytest.mark.parametrize("shape", [(SIDE, SIDE, 1), (1, SIDE, SIDE)], ids=["channels last", "channels first"])
@pytest.mark.parametrize(
    ("starts", "window", "seen"),
    [
        ((0,), Window(4, 1), [MOMENT - 3, MOMENT - 2, MOMENT - 1, MOMENT]),
        ((0,), Window(3, 5), [MOMENT - 10, MOMENT - 5, MOMENT]),
        ((0, 10), Window(2, 1), [8, 9]),  # the last row of the first episode
        ((0, 2), Window(4, 1), [0, 0, 0, 1]),  # the first row fills the missing frames
        ((0,), None, [MOMENT]),
    ],
)
def test_draw_images_shows_frames_from_old_to_new(
    shape: tuple[int, ...], starts: tuple[int, ...], window: Window | None, seen: list[int]
) -> None:
    image = np.broadcast_to(np.arange(LENGTH, dtype=np.uint8)[:, None, None, None], (LENGTH, *shape))
    page = draw(ArraySpec(shape, "uint8", kind="image", window=window), image, starts)
    assert frame_values(page, len(seen)) == seen
    assert (page[:LINE] < 128).any()  # labels


def test_draw_images_keeps_colors_and_splits_two_channels() -> None:
    colours = np.broadcast_to(np.uint8([200, 100, 0]), (LENGTH, SIDE, SIDE, 3))
    page = draw(ArraySpec((SIDE, SIDE, 3), "uint8", kind="image"), colours)
    assert page[TOP + 80, FRAMES[0] + 80].tolist() == [200, 100, 0]
    pairs = np.broadcast_to(np.uint8([7, 9]), (LENGTH, SIDE, SIDE, 2))
    assert frame_values(draw(ArraySpec((SIDE, SIDE, 2), "uint8", kind="image"), pairs), 2) == [7, 9]


def test_draw_images_scales_floats_to_grayscale() -> None:
    image = np.zeros((LENGTH, SIDE, SIDE, 1), np.float32)
    image[:, 0], image[:, 1] = -1.5, 2.5
    page = draw(ArraySpec((SIDE, SIDE, 1), "float32", kind="image"), image)
    column = page[TOP : TOP + 168 : 8, FRAMES[0] + 4, 0].tolist()
    assert column == [0, 255, *[95] * (SIDE - 2)]  # 1.5 of 4


def test_collect_draws_inputs_only_for_images(tmp_path: Path) -> None:
    small = {"env__screen_size": 16, "env__frame_stack": 2, "env__wrapper": {"n_steps": 8}, "env__grayscale": True}
    small |= {"algo__cnn_keys__encoder": ["rgb"], "algo__mlp_keys__encoder": []}
    run = prepare(tmp_path / "images", "discrete_dummy", **small)
    collect(run)
    with Image.open(run.inputs) as page:
        assert page.size == (max(GAP + 2 * (160 + GAP), page.size[0]), LINE + 160 + 2 * GAP)
    run = prepare(tmp_path / "numbers")
    collect(run)
    assert not run.inputs.exists()
