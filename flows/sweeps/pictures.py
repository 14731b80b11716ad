"""Pictures of a sweep: how values went, which keys mattered, and each key's values beside what came of them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flows.report.curve import BLUE, GREY, INK, PALE, VERMILION
from flows.report.sweep_tables import short_names
from flows.sweeps.space import Dimension, stored
from rlcore.config.schema import spell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3  # of slices beside each other
Row = Mapping[str, Any]  # a trial, as `flows.sweeps.report.status` gives it


def history(trials: Sequence[Row]) -> bytes:
    """PNG: the value of each trial by its number, the best so far, and at what value others were pruned."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = _figure(8, 3.6, 1, 1)
    complete = [t for t in trials if t["state"] == "complete"]
    pruned = [t for t in trials if t["state"] == "pruned"]
    best, so_far = [], None
    for trial in complete:
        so_far = trial["value"] if so_far is None else max(so_far, trial["value"])
        best.append(so_far)
    numbers = [t["number"] for t in complete]
    if numbers:
        axes.step(
            [*numbers, trials[-1]["number"]], [*best, best[-1]], where="post", color=VERMILION, label="best so far"
        )
    axes.plot(numbers, [t["value"] for t in complete], "o", color=BLUE, label="complete", markersize=5)
    axes.plot([t["number"] for t in pruned], [t["value"] for t in pruned], "x", color=GREY, label="pruned")
    axes.set_xlabel("trial", color=INK)
    axes.set_ylabel("value", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    return _png(figure)


def importance(shares: Mapping[str, float]) -> bytes:
    """PNG: how much of the spread in value each key explains, the largest on top; the shares add up to 1."""
    names = short_names(list(shares))
    keys = sorted(shares, key=lambda key: shares[key])
    figure, (axes,) = _figure(8, 0.8 + 0.35 * len(keys), 1, 1)
    bars = axes.barh([names[key] for key in keys], [shares[key] for key in keys], color=BLUE, height=0.6)
    axes.bar_label(bars, [f"{shares[key]:.0%}" for key in keys], padding=4, fontsize=9, color=INK)
    axes.set_xlim(0, 1.12 * max(shares.values()))
    axes.set_xlabel("share of the spread in value", color=INK)
    axes.grid(visible=False, axis="y")
    return _png(figure)


def slices(trials: Sequence[Row], space: Sequence[Dimension]) -> bytes:
    """PNG: for each key, its value in a trial beside what came of it; later trials are darker."""
    from matplotlib.colors import to_rgb

    rows = -(-len(space) // COLUMNS)
    figure, panels = _figure(3.1 * min(COLUMNS, len(space)) + 0.8, 2.6 * rows, rows, min(COLUMNS, len(space)))
    names = short_names([dimension.key for dimension in space])
    valued = [t for t in trials if t["value"] is not None]
    for axes, dimension in zip(panels, space, strict=False):
        for state, mark in (("complete", "o"), ("pruned", "x")):
            shown = [t for t in valued if t["state"] == state and dimension.key in t["params"]]
            colour = BLUE if state == "complete" else GREY
            shades = [(*to_rgb(colour), 0.25 + 0.75 * (t["number"] + 1) / len(trials)) for t in shown]
            values = [_place(dimension, t["params"][dimension.key]) for t in shown]
            axes.scatter(values, [t["value"] for t in shown], 22, color=shades, marker=mark)
        _scale(axes, dimension)
        axes.set_title(names[dimension.key], fontsize=9.5, color=INK)
    for axes in panels[len(space) :]:
        axes.set_visible(False)
    for axes in panels[:: min(COLUMNS, len(space))]:
        axes.set_ylabel("value", color=INK)
    return _png(figure)


def _place(dimension: Dimension, value: Any) -> Any:
    return dimension.choices.index(value) if dimension.type == "categorical" else value


def _scale(axes: Axes, dimension: Dimension) -> None:
    if dimension.type == "categorical":
        axes.set_xticks(range(len(dimension.choices)), [spell(stored(choice)) for choice in dimension.choices])
        axes.set_xlim(-0.5, len(dimension.choices) - 0.5)
    elif dimension.log:
        axes.set_xscale("log")
        axes.set_xlim(dimension.low, dimension.high)


def _figure(width: float, height: float, rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure with panels in reading order, without pyplot, which keeps every figure alive."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, sharey=rows * columns > 1, squeeze=False).flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="both", color=PALE, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8.5)
    return figure, panels


def _png(figure: Figure) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", metadata={"Software": None})
    return drawn.getvalue()
