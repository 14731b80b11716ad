"""Pictures of a sweep's trials: value of each trial, learning curves, importance of each key, value by key."""

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
COLUMNS = 3  # number of panels side by side in the picture of values by key
WIDE = 2 * WIDTH
Row = Mapping[str, Any]  # a trial, as in `flows.sweeps.sweep_report.status`
Lines = Mapping[int, Sequence[Sequence[tuple[int, float]]]]  # trial -> for each seed (policy steps, mean greedy return)
MARKS = {"complete": ("o", BLUE), "pruned": ("x", SOFT), "fail": ("v", VERMILION)}


def draw(
    trials: Sequence[Row], curves: Lines, space: Sequence[Dimension], shares: Mapping[str, float]
) -> list[Picture]:
    """Draw the pictures of a sweep's trials; a picture is omitted if there are no data for it.

    Args:
        trials: the trials in the order of their numbers.
        curves: trial number -> for each run of the trial, the pairs (policy steps, mean greedy return).
        space: the varied keys.
        shares: key -> share of the variance of the trials' values that this key explains.

    Returns:
        The pictures, in the order in which the page of the sweep shows them.
    """
    if not trials:  # avoids the import of matplotlib when a sweep starts
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
    """Draw the value of each trial against its number, with a line for the best value up to each trial.

    Pruned and failed trials have other markers.
    """
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
    caption = "Crosses: pruned trials, at their last value before pruning."
    if "fail" in seen:
        caption += " Triangles at the lower edge: failed trials, which have no value."
    return picture(figure, "history", "Value of each trial", caption)


def _learning(trials: Sequence[Row], curves: Lines) -> Picture:
    """Draw the learning curve of each run of each trial; highlight the best trial and the default configuration."""
    complete = [t for t in trials if t["state"] == "complete"]
    best = max(complete, key=lambda t: (t["value"], -t["number"]))["number"] if complete else None
    default = next((t["number"] for t in trials if t.get("default")), None)
    figure, axes = new_figure()
    for trial in sorted(trials, key=lambda t: (t["number"] == best, t["number"] == default)):  # highlighted ones on top
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
    caption = (
        "Mean greedy return of evaluations during training, one line per seed. "
        "Crosses: last evaluation of pruned trials; triangles: last evaluation of failed trials."
    )
    return picture(figure, "curves", "Learning curves of trials", caption)


def _importance(shares: Mapping[str, float]) -> Picture:
    """Draw a bar for each varied key: the share of the variance of the trials' values that the key explains.

    The largest share is on top. The shares sum to 1.
    """
    names = short_names(list(shares))
    keys = sorted(shares, key=lambda key: shares[key])
    figure, axes = new_figure(height=max(HEIGHT / 2, 0.9 + 0.35 * len(keys)))
    bars = axes.barh([names[key] for key in keys], [shares[key] for key in keys], color=BLUE, height=0.6)
    axes.bar_label(bars, [f"{shares[key]:.0%}" for key in keys], padding=4, fontsize=9, color=INK)
    axes.set_xlim(0, 1.15 * max(shares.values()))
    axes.set_xlabel("share of the variance of values", color=INK)
    axes.grid(visible=False, axis="y")
    caption = "Share of the variance of trial values that each key explains (fANOVA of the completed trials)."
    return picture(figure, "importance", "Importance of each key", caption)


def _slices(trials: Sequence[Row], space: Sequence[Dimension]) -> Picture:
    """Draw a panel for each varied key: a scatter plot of the trials, with the key's value on the x-axis.

    The y-axis shows the value of the trial. Later trials are darker.
    """
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
    caption = "Later trials are darker. Crosses: pruned trials; triangles at the lower edge: failed trials."
    return picture(figure, "slices", "Trial value by the value of each key", caption)


def _points(axes: Axes, trials: Sequence[Row], xs: Sequence[Any], shaded: bool) -> None:
    """Draw a marker for each trial that has ended.

    Args:
        axes: axes to draw on. The y-axis shows the value of a trial; a failed trial has a marker at the lower edge.
        trials: the trials in the order of their numbers.
        xs: position of each trial on the x-axis.
        shaded: True draws later trials darker.
    """
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
    low, high, edge = dimension.low, dimension.high, 0.05  # margin, because trials may be at the ends
    if dimension.log:
        axes.set_xscale("log")
        axes.set_xlim(low * (low / high) ** edge, high * (high / low) ** edge)
    else:
        axes.set_xlim(low - edge * (high - low), high + edge * (high - low))
