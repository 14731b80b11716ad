"""Pictures and videos of a world model's predictions.

A dream is a trajectory that the world model imagines: it observes the first steps of a recorded episode and predicts
the following ones without observations. There are two kinds. The first kind uses the recorded actions, and is compared
with the recorded observations (the truth). The second kind uses actions of the agent's policy.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from flows.report.figures import COLOURS, GRID, INK, SOFT, drawing, empty_figure
from rlcore.errors import UserError
from rlcore.evaluation.dream import Dream, dream
from rlcore.evaluation.play import OnProgress
from rlcore.evaluation.video import writing
from rlcore.spec import ArraySpec, EnvSpec
from rlcore.store.directory import RunDirectory, write_bytes
from rlcore.user_code import is_failure, spell_error, user_code

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Picture = np.ndarray  # [height, width, 3] uint8
TRUTH, MODEL, SEEN_TONE, PALE = INK, COLOURS[1], COLOURS[2], GRID
CELL, SMALL_CELL = 128, 72  # approximate height in pixels of an image in a video and in a picture
GAP, EDGE = 4, 3  # pixels between images, and width of the frame around an image
LEFT, TOP = 92, 26  # pixels for text at the left and top of a video
SHOWN = (0, 2, 4, 5, 9, 14, 19, 24, 29, 34, 39, 44, 49)  # time steps in a picture
NUMBERS = 8  # maximal number of vector observations that are drawn
RATE = 8.0  # frames per second, slow enough to compare images
CONTINUE = "P(continue)"  # name of the continuation probability in charts
log = logging.getLogger(__name__)


@user_code()
def picture_dreams(run: RunDirectory, path: Path, on_progress: OnProgress | None = None) -> list[str]:
    """Play episodes with a checkpoint and write its world model's predictions to the run's media/.

        dream_<key>.mp4, .png      for each decoded image key: recorded images, predicted images, and their difference
        dream_curves.png           recorded and predicted rewards, continuation probabilities and vector observations,
                                   and the disagreement of an ensemble
        dream_policy.mp4, .png     dreams with actions of the policy: predicted reward, value and continuation
                                   probability; the video is written only if the model predicts images

    Args:
        run: the run that defines environment and seed.
        path: the checkpoint's directory.
        on_progress: called after every step with the number of finished episodes and the number of all episodes.

    Returns:
        The paths of the files, relative to the run directory.

    Raises:
        UserError: If the run's algorithm has no world model.
    """
    dreams, spec = dream(run, path, on_progress), EnvSpec.from_json(run.read_card()["spec"])
    images = {key: spec.obs[key] for key in dreams.model.obs if spec.obs[key].kind == "image"}
    names = list[str]()
    for key, image in images.items():
        name = f"dream_{key.replace('/', '-')}"
        _film(run.media / f"{name}.mp4", _beside_the_truth(dreams, key, image))
        _save(run.media / f"{name}.png", _strips(dreams, key, image))
        names += [f"{name}.mp4", f"{name}.png"]
    _save(run.media / "dream_curves.png", _curves(dreams, spec))
    names += ["dream_curves.png"]
    if images:
        _film(run.media / "dream_policy.mp4", _own_dream(dreams, images))
        names += ["dream_policy.mp4"]
    _save(run.media / "dream_policy.png", _own_strips(dreams, images) if images else _own_curves(dreams, spec))
    return [str((run.media / name).relative_to(run.path)) for name in [*names, "dream_policy.png"]]


def try_to_draw(run: RunDirectory, path: str, on_progress: OnProgress | None = None) -> list[str]:
    """Call `picture_dreams` during a run; if it fails, log a warning and return [], so that the run continues."""
    try:
        return picture_dreams(run, Path(path), on_progress)
    except BaseException as error:
        if not is_failure(error):
            raise
        log.warning("no pictures of dreams: %s", error if isinstance(error, UserError) else spell_error(error))
        return []


# Images ---------------------------------------------------------------------------------------------------------------


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


def _beside_the_truth(dreams: Dream, key: str, spec: ArraySpec) -> Iterator[Picture]:
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


def _strips(dreams: Dream, key: str, spec: ArraySpec) -> Picture:
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


# The policy's own dream -----------------------------------------------------------------------------------------------


def _read_numbers(dreams: Dream) -> dict[str, np.ndarray]:
    """Return what the model predicts in N dreams of H steps: title of the chart -> array [H+1, N].

    The predictions are the reward, the value and the continuation probability, as far as the model has them.
    """
    own = dreams.own
    numbers = {"reward": own.reward, "value": own.value, CONTINUE: own.continues}
    return {name: part for name, part in numbers.items() if part is not None}


def _lives(dreams: Dream) -> np.ndarray:
    """Return a boolean array [H+1, N] that is True for the steps of a dream until the predicted end of its episode.

    The end is the first step with a continuation probability of at most 0.5; it is still True in the array.
    """
    if dreams.own.continues is None:
        return np.ones_like(dreams.own.reward, bool)
    before = np.concatenate([np.ones_like(dreams.own.continues[:1]), dreams.own.continues[:-1]])
    return (before > 0.5).cumprod(0).astype(bool)


def _show_dreams(dreams: Dream, key: str, spec: ArraySpec, side: int) -> list[list[Picture]]:
    """Return a list for each step of the dreams, with the image of each dream.

    Images after the predicted end of an episode are pale. The border of an image has the color that is used for the
    dream in the charts. `side` is the approximate height of an image in pixels.
    """
    pictures = _enlarge(as_pictures(dreams.own.obs[key], spec), side)
    pictures = np.where(_lives(dreams)[..., None, None, None], pictures, 255 - (255 - pictures) // 4)
    return [[_frame(p, tone) for p, tone in zip(row, COLOURS, strict=False)] for row in pictures]


def _own_dream(dreams: Dream, images: Mapping[str, ArraySpec]) -> Iterator[Picture]:
    """Yield the frames of a video of the dreams with actions of the policy.

    A frame shows one step of all dreams side by side. Below are charts of the model's predictions, in which later steps
    are pale.
    """
    keys = [_show_dreams(dreams, key, spec, CELL) for key, spec in images.items()]
    keys = [rows for rows in keys if rows[0][0].shape == keys[0][0][0].shape]
    for t in range(len(keys[0])):
        page = _tile([rows[t] for rows in keys], LEFT, TOP)
        if t == 0:
            chart, place = _chart(dreams, page.shape[1], (LEFT, page.shape[1] - 2 * GAP))
        page_chart, now = chart.copy(), round(place(t))
        page_chart[:, now + 1 :] = 255 - (255 - page_chart[:, now + 1 :]) // 5
        page_chart[4:-26, now] = _rgb(INK)
        words = f"dream of the policy, step {t} of {len(keys[0]) - 1}"
        yield np.concatenate([_write(page, [(LEFT, TOP / 2, "lm", words, INK)]), page_chart])


def _own_strips(dreams: Dream, images: Mapping[str, ArraySpec]) -> Picture:
    """Draw the dreams with actions of the policy, each as a row of images with time from left to right.

    Below the rows are charts of the model's predictions with the same time axis.
    """
    rows = _show_dreams(dreams, *next(iter(images.items())), SMALL_CELL)
    shown = np.linspace(0, len(rows) - 1, min(len(rows), 11)).round().astype(int)
    page, cell = _tile([[*strip] for strip in zip(*(rows[t] for t in shown), strict=True)], LEFT, TOP), rows[0][0]
    centres = [LEFT + cell.shape[1] / 2 + i * (cell.shape[1] + GAP) for i in range(len(shown))]
    words = [(x, TOP / 2, "mm", str(t), INK) for x, t in zip(centres, shown, strict=True)]
    page = _write(page, [*words, (LEFT - 8, TOP / 2, "rm", "step", SOFT)], 13)
    return np.concatenate([page, _chart(dreams, page.shape[1], (centres[0], centres[-1]))[0]])


def _chart(dreams: Dream, width: int, reach: tuple[float, float]) -> tuple[Picture, Callable[[int], float]]:
    """Draw charts of the model's predictions in the dreams, one below the other.

    Args:
        dreams: the dreams.
        width: width of the picture in pixels.
        reach: x positions of the first and the last step, in pixels.

    Returns:
        The picture, with an even height in pixels, and a function that converts a step to its x position.
    """
    numbers, lives, (left, right) = _read_numbers(dreams), _lives(dreams), reach
    height, span = 100 * len(numbers) + 30, max(1, len(lives) - 1)
    with drawing():
        figure = empty_figure(width / 100, height / 100, dpi=100)
        for i, (name, curves) in enumerate(numbers.items()):
            axes = _axes(figure, (left, 100 * i + 10, right - left, 82), name)
            for n, tone in enumerate(COLOURS[: curves.shape[1]]):
                axes.plot(curves[:, n], color=tone, linewidth=0.8, alpha=0.3)
                axes.plot(np.where(lives[:, n], curves[:, n], np.nan), color=tone, linewidth=1.5)
            axes.set_xlim(0, span)
            if name == CONTINUE:
                axes.set_ylim(-0.08, 1.08)
            axes.tick_params(labelbottom=i == len(numbers) - 1)
        drawn = _draw(figure)
    return drawn[: height - height % 2], lambda step: left + step / span * (right - left)


# Curves ---------------------------------------------------------------------------------------------------------------


def _numbers(obs: Mapping[str, np.ndarray], spec: EnvSpec) -> dict[str, np.ndarray]:
    """Return the first `NUMBERS` elements of the vector observations: name -> array [T, N]; images are omitted.

    The name is the observation key, followed by the index of the element if the observation has several elements.
    """
    numbers: dict[str, np.ndarray] = {}
    for key, part in obs.items():
        if spec.obs[key].kind == "image":
            continue
        flat = part.reshape(*part.shape[:2], -1).astype(float)
        size = flat.shape[-1]
        numbers |= {f"{key} {i}" if size > 1 else key: flat[..., i] for i in range(size)}
    return dict([*numbers.items()][:NUMBERS])


def _curves(dreams: Dream, spec: EnvSpec) -> Picture:
    """Draw curves of recorded and predicted rewards, continuation probabilities and vector observations.

    If the learner has an ensemble (Plan2Explore), its disagreement about each recorded step is drawn, too.

    There is one row for each of these quantities and one column for each recorded sequence.
    """
    truth, model = (_numbers(prediction.obs, spec) for prediction in (dreams.truth, dreams.model))
    rows = {name: (truth[name], model[name]) for name in truth} | {"reward": (dreams.truth.reward, dreams.model.reward)}
    if dreams.truth.continues is not None and dreams.model.continues is not None:
        rows[CONTINUE] = (dreams.truth.continues, dreams.model.continues)
    length = int(dreams.there.sum(0).max())
    names = {f"{min(dreams.seen, length)} steps observed": SEEN_TONE, "recorded": TRUTH, "model": MODEL}
    drawn: dict[str, list[tuple[np.ndarray, str, np.ndarray]]] = {
        name: [(a[:length], TRUTH, dreams.there), (b[:length], MODEL, dreams.there)] for name, (a, b) in rows.items()
    }
    if dreams.disagreement is not None:
        drawn["disagreement"] = [(dreams.disagreement[:length], MODEL, dreams.there)]
    return _panels(drawn, names, "time step", min(dreams.seen, length))


def _own_curves(dreams: Dream, spec: EnvSpec) -> Picture:
    """Draw curves of the predictions in the dreams with actions of the policy.

    There is one row for each predicted quantity (vector observations, reward, value, continuation probability) and one
    column for each dream. A curve is pale after the predicted end of the episode.
    """
    lives, rows = _lives(dreams), {**_numbers(dreams.own.obs, spec), **_read_numbers(dreams)}
    drawn = {name: [(c, PALE, np.ones_like(lives)), (c, MODEL, lives)] for name, c in rows.items()}
    names = {"dream of the policy": MODEL, "after its predicted end": PALE}
    return _panels(drawn, names if not lives.all() else {"dream of the policy": MODEL}, "step", 0)


def _panels(
    rows: Mapping[str, Sequence[tuple[np.ndarray, str, np.ndarray]]], names: Mapping[str, str], axis: str, seen: int
) -> Picture:
    """Draw one chart for each quantity, one below the other.

    The N sequences of a quantity are drawn side by side in one chart, because Matplotlib needs 25 ms for each chart.

    Args:
        rows: quantity -> curves of its chart. A curve has three elements: values [T, N], color, and a boolean array
            that is False for values that are not drawn.
        names: text in the legend -> color.
        axis: label of the x axis.
        seen: number of time steps that the model has observed; they are drawn on a colored background.

    Returns:
        The picture.
    """
    from matplotlib.lines import Line2D

    length, count = next(iter(rows.values()))[0][0].shape
    width, height, apart = 1200, 105 * len(rows) + 75, 1.1 * max(1, length - 1)
    at = np.arange(length)[:, None] + apart * np.arange(count)  # [T, N], x position of a time step
    ticks = np.linspace(0, length - 1, 3).round().astype(int)
    with drawing():
        figure = empty_figure(width / 100, height / 100, dpi=100)
        for i, (name, curves) in enumerate(rows.items()):
            there = [curve[kept[:length]] for curve, _, kept in curves]
            low, high = (0.0, 1.0) if name == CONTINUE else (min(map(np.min, there)), max(map(np.max, there)))
            spread = max(high - low, 0.1 * max(abs(low), abs(high)), 1e-3)  # does not magnify small changes
            margin = 0.54 * spread - (high - low) / 2
            axes = _axes(figure, (70, 35 + 105 * i, width - 80, 90), name)
            for n in range(count if seen else 0):
                axes.axvspan(at[0, n], at[seen - 1, n], color=SEEN_TONE, alpha=0.18, linewidth=0)
            for curve, colour, kept in curves:
                axes.plot(at, np.where(kept[:length], curve, np.nan), color=colour, linewidth=1.3)
            for n in range(1, count):
                axes.axvline(at[0, n], color=SOFT, linewidth=0.8)
            axes.set_xlim(0, at[-1, -1] + 0.05 * length)
            axes.set_ylim(low - margin, high + margin)
            last = i == len(rows) - 1  # ticks are slow to draw, so only the last chart has them
            axes.set_xticks(at[ticks].T.flatten() if last else [])
            if last:
                axes.set_xticklabels([*map(str, ticks + (1 if seen else 0))] * count)
        handles = [Line2D([], [], color=tone, linewidth=3, label=name) for name, tone in names.items()]
        where = {"loc": "upper left", "bbox_to_anchor": (62 / width, 1 - 4 / height), "borderaxespad": 0.0}
        figure.legend(handles=handles, ncols=len(names), frameon=False, labelcolor=INK, handlelength=1.2, **where)
        figure.text(0.5, 6 / height, axis, color=INK, fontsize=9, ha="center")
        return _draw(figure)


def _axes(figure: Figure, place: tuple[float, float, float, float], name: str) -> Axes:
    """Add a chart to a figure and return it.

    `place` has the chart's left edge, top edge, width and height in pixels; `name` is the label of its y axis.
    """
    width, height = figure.bbox.size
    left, top, wide, high = place
    axes = figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(color=SOFT, labelcolor=INK, labelsize=8)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_ylabel(name, color=INK, fontsize=9)
    axes.locator_params(axis="y", nbins=4)
    return axes


def _draw(figure: Figure) -> Picture:
    canvas: Any = figure.canvas
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


# Files ----------------------------------------------------------------------------------------------------------------


def _save(path: Path, picture: Picture) -> None:
    """Write a picture as PNG, atomically."""
    data = io.BytesIO()
    Image.fromarray(picture).save(data, "PNG")
    write_bytes(path, data.getvalue())


def _film(path: Path, frames: Iterator[Picture]) -> None:
    """Write frames of one size, with even height and width, as a video."""
    first = next(frames)
    with writing(path, RATE, first.shape) as write:
        write(first)
        for frame in frames:
            write(frame)
