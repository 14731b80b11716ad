"""Charts of a world model's predictions that are numbers: rewards, values, continuation, vector observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.report.figures import COLOURS, GRID, INK, SOFT, drawing, empty_figure
from rlcore.evaluation.dream import Dream
from rlcore.spec import EnvSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Picture = np.ndarray  # [height, width, 3] uint8
TRUTH, MODEL, SEEN_TONE, PALE = INK, COLOURS[1], COLOURS[2], GRID
NUMBERS = 8  # maximal number of vector observations that are drawn
CONTINUE = "P(continue)"  # name of the continuation probability in charts


def _read_numbers(dreams: Dream) -> dict[str, np.ndarray]:
    """Return what the model predicts in N dreams of H steps: title of the chart -> array [H+1, N].

    The predictions are the reward, the value and the continuation probability, as far as the model has them.
    """
    own = dreams.own
    numbers = {"reward": own.reward, "value": own.value, CONTINUE: own.continues}
    return {name: part for name, part in numbers.items() if part is not None}


def find_lives(dreams: Dream) -> np.ndarray:
    """Return a boolean array [H+1, N] that is True for the steps of a dream until the predicted end of its episode.

    The end is the first step with a continuation probability of at most 0.5; it is still True in the array.
    """
    if dreams.own.continues is None:
        return np.ones_like(dreams.own.reward, bool)
    before = np.concatenate([np.ones_like(dreams.own.continues[:1]), dreams.own.continues[:-1]])
    return (before > 0.5).cumprod(0).astype(bool)


def chart_policy_dream(dreams: Dream, width: int, reach: tuple[float, float]) -> tuple[Picture, Callable[[int], float]]:
    """Draw charts of the model's predictions in the dreams, one below the other.

    Args:
        dreams: the dreams.
        width: width of the picture in pixels.
        reach: x positions of the first and the last step, in pixels.

    Returns:
        The picture, with an even height in pixels, and a function that converts a step to its x position.
    """
    numbers, lives, (left, right) = _read_numbers(dreams), find_lives(dreams), reach
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


def draw_curves(dreams: Dream, spec: EnvSpec) -> Picture:
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
        steps = dreams.there & ~np.isnan(dreams.disagreement)
        drawn["disagreement"] = [(dreams.disagreement[:length], MODEL, steps)]
    return _panels(drawn, names, "time step", min(dreams.seen, length))


def draw_policy_curves(dreams: Dream, spec: EnvSpec) -> Picture:
    """Draw curves of the predictions in the dreams with actions of the policy.

    There is one row for each predicted quantity (vector observations, reward, value, continuation probability) and one
    column for each dream. A curve is pale after the predicted end of the episode.
    """
    lives, rows = find_lives(dreams), {**_numbers(dreams.own.obs, spec), **_read_numbers(dreams)}
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
