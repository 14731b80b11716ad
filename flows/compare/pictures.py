"""Pictures of a comparison."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flows.compare import curves, statistics
from flows.compare.curves import Curve
from flows.compare.result import ALL, Comparison
from flows.compare.statistics import Interval
from flows.compare.verdict import GAP, NAMES
from flows.report.figures import COLOURS, INK, SOFT, Picture, drawing, label, legend, new_figure, picture
from flows.report.sentences import number
from rlcore.store.series import CPU, WALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = 101  # number of values at which the performance profile is drawn
LONGEST = 34  # maximal number of characters of a side's name in a legend


def draw(comparison: Comparison) -> Iterator[Picture]:
    """Yield the pictures of a comparison; pictures without data are omitted."""
    with drawing():
        yield from _learning(comparison)
        yield from (_aggregates(comparison), _improvement(comparison), _profile(comparison))


def colour(comparison: Comparison, side: str) -> str:
    """Return the color of a side (group of runs); from the ninth side on, the eight colors are used again."""
    return COLOURS[list(comparison.selection.counted).index(side) % len(COLOURS)]


def _learning(comparison: Comparison) -> Iterator[Picture]:
    sides, what = list(comparison.selection.counted), comparison.measure.quantity.words
    if len(comparison.tasks) > 1:
        by_budget = {side: curves.against_budget(comparison, side) for side in sides}
        title = f"{ALL}: score by fraction of the budget"
        yield from _curves(by_budget, "curve_all", title, "fraction of algo.total_steps", "score")
    for number_, task in enumerate(comparison.tasks):
        mark = f"_{number_ + 1}" if len(comparison.tasks) > 1 else ""
        by_steps = {side: curves.against_steps(comparison, side, task) for side in sides}
        title = f"{task}: {what} by policy steps"
        yield from _curves(by_steps, f"curve_steps{mark}", title, "policy steps", what)
        for clock, stem, time in ((WALL, "curve_time", "wall time"), (CPU, "curve_cpu", "processor time")):
            by_time = {side: curves.against_time(comparison, side, task, clock) for side in sides}
            yield from _curves(by_time, stem + mark, f"{task}: {what} by {time}", "seconds", what)


def _curves(by_side: Mapping[str, Curve | None], stem: str, title: str, x: str, y: str) -> Iterator[Picture]:
    """Yield a picture with the learning curve of each side (group of runs); yield nothing if a curve is None."""
    known = {side: curve for side, curve in by_side.items() if curve is not None}
    if len(known) == len(by_side):
        yield curves_picture(known, stem, title, x, y)


def curves_picture(by_side: Mapping[str, Curve], stem: str, title: str, x: str, y: str) -> Picture:
    """Draw learning curves of sides (groups of runs), each with its runs, interquartile mean and confidence interval.

    Args:
        by_side: side -> its learning curve. The order of the sides determines their colors.
        stem: file name of the picture without extension.
        title: title of the picture.
        x: label of the x axis.
        y: label of the y axis.

    Returns:
        The picture.
    """
    figure, axes = new_figure()
    for tone, (side, curve) in zip(itertools.cycle(COLOURS), by_side.items(), strict=False):
        for steps, values, _ in curve.runs:
            axes.plot(steps, values, color=tone, linewidth=0.6, alpha=0.25)
        axes.fill_between(curve.x, curve.band.low, curve.band.high, color=tone, alpha=0.22, linewidth=0)
        axes.plot(curve.x, curve.band.value, color=tone, linewidth=2.0, label=short(side))
    axes.set_xlim(left=0)
    label(figure, axes, x, y)
    return picture(figure, stem, title)


def _aggregates(comparison: Comparison) -> Picture:
    """Draw the four aggregates (such as the interquartile mean over runs) of each side (group of runs).

    The picture has one panel for each aggregate, in two rows, so that it fits on a phone. Each panel has one row for
    each side.
    """
    where = ALL if len(comparison.tasks) > 1 else comparison.tasks[0]
    sides = list(comparison.aggregates[where])
    figure, panels = new_figure(rows=2, columns=2, height=1.2 + 0.75 * len(sides))
    for axes, name in zip(panels.flat, NAMES, strict=True):
        figures = [comparison.aggregates[where][side][name] for side in sides]
        unit = "score" if len(comparison.tasks) > 1 or name == GAP else comparison.measure.quantity.words
        _intervals(axes, figures, [colour(comparison, side) for side in sides], digits=2 if unit == "score" else None)
        axes.set_title(f"{NAMES[name]} ({unit})", fontsize=10.5, color=INK, loc="left")
    legend(figure, {short(side): colour(comparison, side) for side in sides})
    caption = f"{where}: {comparison.measure.words}. Bars are 95 % intervals; a smaller optimality gap is better."
    return picture(figure, "aggregates", "Results after training", caption)


def _improvement(comparison: Comparison) -> Picture:
    figure, axes = new_figure(height=1.1 + 0.62 * len(comparison.pairs))
    pairs = [pair.upright() for pair in comparison.pairs]
    axes.axvline(0.5, color=SOFT, linewidth=1.0, linestyle=(0, (4, 3)))
    _intervals(axes, [pair.improvement for pair in pairs], [colour(comparison, pair.first) for pair in pairs], digits=2)
    axes.set_xlim(-0.02, 1.02)
    rows = range(len(pairs))
    axes.set_yticks(rows, [f"{short(p.first, 22)}\nover {short(p.second, 22)}" for p in pairs], color=INK)
    axes.set_xlabel("probability", color=INK)
    caption = (
        "Probability that a run of one side is better than a run of the other, with "
        f"{100 * comparison.level:.3g} % intervals. 0.5: no difference."
    )
    return picture(figure, "improvement", "Probability of improvement", caption)


def _profile(comparison: Comparison) -> Picture:
    several = len(comparison.tasks) > 1
    values = {
        side: comparison.normalise(side) if several else [comparison.values[side][comparison.tasks[0]]]
        for side in comparison.values
    }
    ends = [f(one) for of in values.values() for one in of for f in (np.min, np.max)]
    margin = 0.03 * (max(ends) - min(ends)) or 1.0
    levels = np.linspace(min(ends) - margin, max(ends) + margin, LEVELS)
    figure, axes = new_figure()
    for side, of in values.items():
        above, rng = statistics.share_above(levels), np.random.default_rng(0)
        band = statistics.bootstrap(of, above, rng, replicates=statistics.BAND_REPLICATES)
        axes.fill_between(
            levels, band.low, band.high, color=colour(comparison, side), alpha=0.22, linewidth=0, step="mid"
        )
        axes.step(levels, band.value, where="mid", color=colour(comparison, side), linewidth=2.0, label=short(side))
    axes.set_ylim(-0.02, 1.02)
    label(figure, axes, "score" if several else comparison.measure.quantity.words, "fraction of runs above")
    caption = "Fraction of runs whose value is above each level, with 95 % bands; higher is better."
    return picture(figure, "profile", "Performance profile", caption)


def short(name: str, longest: int = LONGEST) -> str:
    """Shorten a name in the middle if it is too long for a legend."""
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"


def _intervals(axes: Axes, figures: Sequence[Interval], tones: Sequence[str], digits: int | None = None) -> None:
    """Draw one row for each estimate: a bar for its confidence interval, and a marker with a number."""
    for row, (figure, tone) in enumerate(zip(figures, tones, strict=True)):
        axes.plot([figure.low, figure.high], [row, row], color=tone, linewidth=7, alpha=0.4, solid_capstyle="butt")
        axes.plot([figure.value], [row], marker="|", markersize=13, markeredgewidth=2.4, color=tone)
        text = number(figure.value) if digits is None else f"{figure.value:.{digits}f}"
        place = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": 9, "color": INK}
        axes.annotate(text.replace("-", "\N{MINUS SIGN}"), (figure.value, row), **place)
    axes.set_ylim(len(figures) - 0.5, -0.95)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.12)
    axes.locator_params(axis="x", nbins=4)
