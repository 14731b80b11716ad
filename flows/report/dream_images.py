"""Pictures and video frames of a world model's predicted images, beside recorded ones and in dreams of the policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from flows.report.dream_charts import MODEL, SEEN_TONE, Picture, chart_policy_dream, find_lives
from flows.report.figures import COLOURS, GRID, INK, SOFT
from rlcore.evaluation.dream import Dream
from rlcore.spec import ArraySpec

CELL, SMALL_CELL = 128, 72  # approximate height in pixels of an image in a video and in a picture
GAP, EDGE = 4, 3  # pixels between images, and width of the frame around an image
LEFT, TOP = 92, 26  # pixels for text at the left and top of a video
SHOWN = (0, 2, 4, 5, 9, 14, 19, 24, 29, 34, 39, 44, 49)  # time steps in a picture


def as_pictures(images: np.ndarray, spec: ArraySpec) -> np.ndarray:
    """Convert image observations [..., *shape] to RGB pictures [..., height, width, 3] uint8.

    `spec` has the shape and dtype of the observations. If an observation is a stack of frames, the newest one is used.
    """
    rows = images if not spec.channels_first else np.moveaxis(images, -3, -1)
    lead = images.ndim - len(spec.shape)
    rows = rows.reshape(*images.shape[:lead], -1, *rows.shape[-3:])[..., -1, :, :, :]
    if np.dtype(spec.dtype).kind == "f":  # the range of float images is unknown
        low, high = rows.min(), rows.max()
        rows = (rows - low) / max(float(high - low), 1e-6) * 255
    channels = rows.shape[-1]
    rows = rows.clip(0, 255).astype(np.uint8)
    return rows[..., -3:] if channels >= 3 else rows[..., -1:].repeat(3, -1)


def _difference(model: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return an image of the difference between the predicted and the recorded image.

    A pixel is gray if both images are equal, and brighter if the predicted image is brighter.
    """
    return ((model.astype(int) - truth.astype(int) + 255) // 2).astype(np.uint8)


def _enlarge(pictures: np.ndarray, side: int) -> np.ndarray:
    """Enlarge pictures [..., height, width, 3] by an integer factor, so that the height is about `side`."""
    factor = max(1, round(side / pictures.shape[-3]))
    return pictures.repeat(factor, -3).repeat(factor, -2)


def _blank(pictures: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Make each picture of an array [..., height, width, 3] white if its value in `there` [...] is False."""
    return np.where(there[..., None, None, None], pictures, np.uint8(255))


def _frame(picture: Picture, colour: str, edge: int = EDGE) -> Picture:
    """Return a picture with a frame of `edge` pixels in a color around it."""
    whole = np.empty((picture.shape[0] + 2 * edge, picture.shape[1] + 2 * edge, 3), np.uint8)
    whole[:] = _rgb(colour)
    whole[edge:-edge, edge:-edge] = picture
    return whole


def _tile(rows: Sequence[Sequence[Picture]], left: int, top: int) -> Picture:
    """Arrange pictures of the same size in a grid on a white page.

    The page has space for text at the left and at the top. Its width and height in pixels are even, as videos require.
    """
    height, width = rows[0][0].shape[:2]
    size = top + len(rows) * (height + GAP), left + len(rows[0]) * (width + GAP)
    page = np.full((*(side + side % 2 for side in size), 3), 255, np.uint8)
    for i, row in enumerate(rows):
        for j, picture in enumerate(row):
            y, x = top + i * (height + GAP), left + j * (width + GAP)
            page[y : y + height, x : x + width] = picture
    return page


def _write(page: Picture, words: Sequence[tuple[float, float, str, str, str]], size: int = 15) -> Picture:
    """Return a copy of a page with texts; each element of `words` is (x, y, Pillow's text anchor, text, color)."""
    image = Image.fromarray(page)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size)
    for x, y, anchor, text, colour in words:
        pen.text((x, y), text, fill=_rgb(colour), font=font, anchor=anchor)
    return np.asarray(image)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def render_comparison(dreams: Dream, key: str, spec: ArraySpec) -> Iterator[Picture]:
    """Yield the frames of a video that compares predicted images with recorded ones.

    A frame of the video shows one time step. It has three rows: the recorded image (truth), the predicted image, and
    their difference. It has one column for each recorded sequence.
    """
    truth, model = (as_pictures(prediction.obs[key], spec) for prediction in (dreams.truth, dreams.model))
    kinds = {"truth": truth, "model": model, "difference": _difference(model, truth)}
    rows = {name: _blank(_enlarge(pictures, CELL), dreams.there) for name, pictures in kinds.items()}
    for t in range(len(truth)):
        word, colour = ("observed", SEEN_TONE) if t < dreams.seen else ("imagined", MODEL)
        edges = {"truth": INK, "model": colour, "difference": SOFT}
        cells = [[_frame(picture, edges[name]) for picture in pictures[t]] for name, pictures in rows.items()]
        page, height = _tile(cells, LEFT, TOP), cells[0][0].shape[0]
        words = [(LEFT - 8, TOP + (i + 0.5) * (height + GAP), "rm", name, INK) for i, name in enumerate(rows)]
        yield _write(page, [*words, (LEFT, TOP / 2, "lm", f"step {t + 1} of {len(truth)}: {word}", colour)])


def draw_comparison(dreams: Dream, key: str, spec: ArraySpec) -> Picture:
    """Draw a picture that compares predicted images with recorded ones; time runs from left to right.

    There are three rows for each recorded sequence: recorded images (truth), predicted images, and their difference.
    """
    shown = [t for t in SHOWN if t < len(dreams.there)]
    truth, model = (as_pictures(prediction.obs[key], spec) for prediction in (dreams.truth, dreams.model))
    kinds = {"truth": truth, "model": model, "difference": _difference(model, truth)}
    pages, left = list[Picture](), 84
    for n in range(truth.shape[1]):
        small = [_blank(_enlarge(part[shown, n], SMALL_CELL), dreams.there[shown, n]) for part in kinds.values()]
        cells, top = [[_frame(picture, GRID, 1) for picture in row] for row in small], 0 if n else TOP
        page, (height, width) = _tile(cells, left, top), cells[0][0].shape[:2]
        words = [(left - 6, top + i * (height + GAP) + height / 2, "rm", name, INK) for i, name in enumerate(kinds)]
        if not n:
            places = [left + i * (width + GAP) + width / 2 for i in range(len(shown))]
            colours = [SEEN_TONE if t < dreams.seen else MODEL for t in shown]
            words += [(x, TOP / 2, "mm", str(t + 1), tone) for x, t, tone in zip(places, shown, colours, strict=True)]
            words += [(left - 6, TOP / 2, "rm", "time step", SOFT)]
        pages += [_write(page, words, 13), np.full((8, page.shape[1], 3), 255, np.uint8)]
    legend = np.full((22, pages[0].shape[1], 3), 255, np.uint8)
    words = [(left, 8, "lm", "observed", SEEN_TONE), (left + 72, 8, "lm", "imagined", MODEL)]
    return np.concatenate([*pages, _write(legend, words, 13)])


def _show_dreams(dreams: Dream, key: str, spec: ArraySpec, side: int) -> list[list[Picture]]:
    """Return a list for each step of the dreams, with the image of each dream.

    Images after the predicted end of an episode are pale. The border of an image has the color that is used for the
    dream in the charts. `side` is the approximate height of an image in pixels.
    """
    pictures = _enlarge(as_pictures(dreams.own.obs[key], spec), side)
    pictures = np.where(find_lives(dreams)[..., None, None, None], pictures, 255 - (255 - pictures) // 4)
    return [[_frame(p, tone) for p, tone in zip(row, COLOURS, strict=False)] for row in pictures]


def render_policy_dream(dreams: Dream, images: Mapping[str, ArraySpec]) -> Iterator[Picture]:
    """Yield the frames of a video of the dreams with actions of the policy.

    A frame shows one step of all dreams side by side. Below are charts of the model's predictions, in which later steps
    are pale.
    """
    keys = [_show_dreams(dreams, key, spec, CELL) for key, spec in images.items()]
    keys = [rows for rows in keys if rows[0][0].shape == keys[0][0][0].shape]
    for t in range(len(keys[0])):
        page = _tile([rows[t] for rows in keys], LEFT, TOP)
        if t == 0:
            chart, place = chart_policy_dream(dreams, page.shape[1], (LEFT, page.shape[1] - 2 * GAP))
        page_chart, now = chart.copy(), round(place(t))
        page_chart[:, now + 1 :] = 255 - (255 - page_chart[:, now + 1 :]) // 5
        page_chart[4:-26, now] = _rgb(INK)
        words = f"dream of the policy, step {t} of {len(keys[0]) - 1}"
        yield np.concatenate([_write(page, [(LEFT, TOP / 2, "lm", words, INK)]), page_chart])


def draw_policy_dream(dreams: Dream, images: Mapping[str, ArraySpec]) -> Picture:
    """Draw the dreams with actions of the policy, each as a row of images with time from left to right.

    Below the rows are charts of the model's predictions with the same time axis.
    """
    rows = _show_dreams(dreams, *next(iter(images.items())), SMALL_CELL)
    shown = np.linspace(0, len(rows) - 1, min(len(rows), 11)).round().astype(int)
    page, cell = _tile([[*strip] for strip in zip(*(rows[t] for t in shown), strict=True)], LEFT, TOP), rows[0][0]
    centres = [LEFT + cell.shape[1] / 2 + i * (cell.shape[1] + GAP) for i in range(len(shown))]
    words = [(x, TOP / 2, "mm", str(t), INK) for x, t in zip(centres, shown, strict=True)]
    page = _write(page, [*words, (LEFT - 8, TOP / 2, "rm", "step", SOFT)], 13)
    return np.concatenate([page, chart_policy_dream(dreams, page.shape[1], (centres[0], centres[-1]))[0]])
