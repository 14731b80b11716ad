"""Pictures of a sweep: values, learning curves of trials, which keys mattered, each key beside what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flows.report.figures import COLOURS, HEIGHT, INK, SOFT, WIDTH, Picture, drawing, label, legend, new_figure, picture
from flows.report.sweep_tables import short_names
from flows.sweeps.space import Dimension, to_stored
from rlcore.config.values import spell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, VERMILION, GREEN = COLOURS[:3]
COLUMNS = 3  # of slices beside each other
WIDE = 2 * WIDTH
Row = Mapping[str, Any]  # a trial, as `flows.sweeps.sweep_report.status` gives it
Lines = Mapping[int, Sequence[Sequence[tuple[int, float]]]]  # trial -> of each seed (policy steps, mean greedy return)
MARKS = {"complete": ("o", BLUE), "pruned": ("x", SOFT), "fail": ("v", VERMILION)}


def draw(
    trials: Sequence[Row], curves: Lines, space: Sequence[Dimension], shares: Mapping[str, float]
) -> list[Picture]:
    """Every picture that there are figures for.

    Args:
        trials: in order.
        curves: of their evaluations.
        space: what is varied.
        shares: how much of the spread in value each key explains.

    Returns:
        The pictures, in the order of the page.
    """
    if not trials:  # and matplotlib is not imported beside a sweep that begins
        return []
    with drawing():
        return list(_every(trials, curves, space, shares))


def _every(
    trials: Sequence[Row], curves: Lines, space: Sequence[Dimension], shares: Mapping[str, float]
) -> Iterator[Picture]:
    if any(trial["state"] in MARKS for trial in trials):
        yield _history(trials)
    if any(len(line) > 1 for lines in curves.values() for line in lines):
        yield _learning(trials, curves)
    if shares:
        yield _importance(shares)
    if any(trial["state"] in MARKS for trial in trials):
        yield _slices(trials, space)


def _history(trials: Sequence[Row]) -> Picture:
    """The value of each trial by its number, the best so far, at what value others were pruned, and which failed."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure()
    complete = [t for t in trials if t["state"] == "complete"]
    best, so_far = [], None
    for trial in complete:
        so_far = trial["value"] if so_far is None else max(so_far, trial["value"])
        best.append(so_far)
    if complete:
        numbers = [*(t["number"] for t in complete), trials[-1]["number"]]
        axes.step(numbers, [*best, best[-1]], where="post", color=GREEN)
    _points(axes, trials, [t["number"] for t in trials], shaded=False)
    label(figure, axes, "trial", "value")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    seen = {t["state"] for t in trials}
    names = {"complete": "complete", "pruned": "pruned", "fail": "failed"}
    tones = {name: MARKS[state][1] for state, name in names.items() if state in seen}
    legend(figure, ({"best so far": GREEN} if complete else {}) | tones)
    caption = "Crosses were pruned, at the value that they had then."
    if "fail" in seen:
        caption += " Triangles at the lower edge have failed, and have no value."
    return picture(figure, "history", "Value of each trial", caption)


def _learning(trials: Sequence[Row], curves: Lines) -> Picture:
    """Evaluations of every trial along training: the best, the default configuration, all others."""
    complete = [t for t in trials if t["state"] == "complete"]
    best = max(complete, key=lambda t: (t["value"], -t["number"]))["number"] if complete else None
    default = next((t["number"] for t in trials if t.get("default")), None)
    figure, axes = new_figure()
    for trial in sorted(trials, key=lambda t: (t["number"] == best, t["number"] == default)):  # those last, above all
        number: int = trial["number"]
        tone = GREEN if number == best else BLUE if number == default else SOFT
        width, alpha = (0.8, 0.45) if tone == SOFT else (2.0, 1.0)
        for line in curves.get(number, ()):
            if not line:
                continue
            axes.plot(*zip(*line, strict=True), color=tone, linewidth=width, alpha=alpha)
            if trial["state"] in ("pruned", "fail"):
                mark, colour = MARKS[trial["state"]]
                axes.plot(*line[-1], marker=mark, color=colour, markersize=5)
    axes.set_xlim(left=0)
    label(figure, axes, "policy steps", "greedy mean return")
    named: dict[str, str] = {} if best is None else {f"best, trial {best}": GREEN}
    if default not in (None, best):
        named["default"] = BLUE
    legend(figure, named | {"others": SOFT})
    caption = "Evaluations while training, a line a seed. Crosses: pruned there; triangles: failed after it."
    return picture(figure, "curves", "Learning curves of trials", caption)


def _importance(shares: Mapping[str, float]) -> Picture:
    """Picture of the share of the spread in value each key explains, the largest on top; the shares add up to 1."""
    names = short_names(list(shares))
    keys = sorted(shares, key=lambda key: shares[key])
    figure, axes = new_figure(height=max(HEIGHT / 2, 0.9 + 0.35 * len(keys)))
    bars = axes.barh([names[key] for key in keys], [shares[key] for key in keys], color=BLUE, height=0.6)
    axes.bar_label(bars, [f"{shares[key]:.0%}" for key in keys], padding=4, fontsize=9, color=INK)
    axes.set_xlim(0, 1.15 * max(shares.values()))
    axes.set_xlabel("share of the spread in value", color=INK)
    axes.grid(visible=False, axis="y")
    return picture(figure, "importance", "Which keys mattered", "By fANOVA over the completed trials.")


def _slices(trials: Sequence[Row], space: Sequence[Dimension]) -> Picture:
    """For each key, its value in a trial beside what came of it; later trials are darker."""
    columns, rows = min(COLUMNS, len(space)), -(-len(space) // COLUMNS)
    figure, panels = new_figure(rows, columns, height=2.6 * rows, width=WIDE * columns / COLUMNS)
    flat = list(panels.flat) if rows * columns > 1 else [panels]
    names = short_names([dimension.key for dimension in space])
    for place, (axes, dimension) in enumerate(zip(flat, space, strict=False)):
        shown = [t for t in trials if dimension.key in t["params"]]
        _points(axes, shown, [_place(dimension, t["params"][dimension.key]) for t in shown], shaded=True)
        _scale(axes, dimension)
        axes.set_title(names[dimension.key], fontsize=10.5, color=INK, loc="left")
        if place % columns == 0:
            axes.set_ylabel("value", color=INK)
    for axes in flat[len(space) :]:
        axes.set_visible(False)
    caption = "Later trials are darker. Crosses were pruned; triangles at the lower edge have failed."
    return picture(figure, "slices", "Each key beside what came of it", caption)


def _points(axes: Axes, trials: Sequence[Row], xs: Sequence[Any], shaded: bool) -> None:
    """A mark for each trial that has ended: its value, or the lower edge where it failed."""
    for state, (mark, tone) in MARKS.items():
        for x, trial in zip(xs, trials, strict=True):
            failed = state == "fail"
            if trial["state"] != state or (trial["value"] is None and not failed):
                continue
            alpha = 0.3 + 0.7 * (trial["number"] + 1) / (trials[-1]["number"] + 1) if shaded else 1.0
            place = {"transform": axes.get_xaxis_transform(), "clip_on": False} if failed else {}
            height: Any = 0.02 if failed else trial["value"]
            axes.plot([x], [height], mark, color=tone, alpha=alpha, markersize=5, **place)


def _place(dimension: Dimension, value: Any) -> Any:
    return dimension.choices.index(value) if dimension.type == "categorical" else value


def _scale(axes: Axes, dimension: Dimension) -> None:
    if dimension.type == "categorical":
        axes.set_xticks(range(len(dimension.choices)), [spell(to_stored(choice)) for choice in dimension.choices])
        axes.set_xlim(-0.5, len(dimension.choices) - 0.5)
        return
    low, high, edge = dimension.low, dimension.high, 0.05  # beyond the ends, where trials lie as well
    if dimension.log:
        axes.set_xscale("log")
        axes.set_xlim(low * (low / high) ** edge, high * (high / low) ** edge)
    else:
        axes.set_xlim(low - edge * (high - low), high + edge * (high - low))
