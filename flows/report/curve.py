"""Picture of a run's learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.report.figures import COLOURS, GRID, INK, SOFT, draw_file, empty_figure
from flows.report.sentences import number
from rlcore import algorithms
from rlcore.store.directory import RunDirectory, write_bytes
from rlcore.store.history import history
from rlcore.store.series import RETURN, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILION, GREEN_MARK = COLOURS[:3]
BESIDE: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9}  # style of numbers next to markers
SHOWN = ("start", "baseline", "evaluation")  # events in the picture, in addition to metrics
FINAL_MARKS = {"greedy": (VERMILION, "*", 14), "stochastic": (GREEN_MARK, "D", 7.5)}


def learning_curve(run: RunDirectory) -> Path:
    """Draw media/learning_curve.png from the event log and return its path.

    The picture shows the returns of training episodes, the evaluations and the mean return of the random policy; those
    that are not in the log are omitted. If the picture exists and is newer than the log's events about them, it is not
    drawn again, because drawing takes 0.25 s.
    """
    log = history(run.events)
    newest = max((event["time"] for kind in SHOWN for event in log.of(kind)), default=0.0)
    newest = max(newest, log.newest)
    if run.curve.exists() and run.curve.stat().st_mtime > newest:
        return run.curve

    from matplotlib.layout_engine import ConstrainedLayoutEngine

    start, final = log.last("start"), log.last("evaluation", final=True)
    title = f"{algorithms.title(start['algo'])} on {start['env_id']} · seed {start['seed']}" if start else run.path.name
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 0.87))  # the rest is for title and legend
    figure = empty_figure(8, 4.5, dpi=150, layout=layout)
    figure.text(0.012, 0.975, title, va="top", fontsize=12.5, fontweight="bold", color=INK)
    widths = (3.7, 1) if final else (1,)
    panels = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
    _draw_training(panels[0], log.lines.get(RETURN))
    if evaluations := log.evaluations:
        steps, label = [e["policy_steps"] for e in evaluations], "greedy evaluation, 95 % interval"
        _draw_intervals(panels[0], steps, [e["greedy"] for e in evaluations], VERMILION, "o", 5.5, label)
    _frame(figure, panels[0])
    _draw_baseline(panels, log.last("baseline"))
    if final:
        _draw_final(panels[1], final)
    write_bytes(run.curve, draw_file(figure, "png"))
    return run.curve


def _open_frame(axes: Axes, *missing: str) -> None:
    """Remove the frame of a panel on the sides `missing` ("top", "right", …) and draw a pale grid behind the data."""
    axes.spines[list(missing)].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _draw_training(axes: Axes, points: Line | None) -> None:
    if not points:
        return
    steps, returns = zip(*points, strict=True)
    reach = len(points) // 100  # for long runs the running mean is drawn over the noisy points
    label = "training episodes, sampled actions"
    if reach:
        axes.plot(steps, returns, color=BLUE, linewidth=0.6, alpha=0.35, zorder=2)
        label += f" (mean of {2 * reach + 1} points)"
    mark = "o" if len(points) == 1 else ""
    axes.plot(steps, running_mean(returns, reach), color=BLUE, linewidth=1.6, marker=mark, label=label, zorder=3)


def running_mean(values: Sequence[float], reach: int) -> list[float]:
    """Return the running mean: for each value, the mean of this value and `reach` neighbors on each side.

    A value near the start or the end of `values` has fewer than `reach` neighbors on one side. Then fewer neighbors are
    used, the same number on both sides.
    """
    sums = [0.0, *accumulate(values)]
    near = [min(reach, i, len(values) - 1 - i) for i in range(len(values))]
    return [(sums[i + n + 1] - sums[i - n]) / (2 * n + 1) for i, n in enumerate(near)]


def _draw_final(axes: Axes, final: Mapping[str, Any]) -> None:
    """Draw the results of the final evaluation in a separate panel, with a number next to each marker."""
    modes = [mode for mode in FINAL_MARKS if final.get(mode)]
    for x, mode in enumerate(modes):
        _draw_intervals(axes, [x], [final[mode]], *FINAL_MARKS[mode])
    axes.set_xlim(-0.6, len(modes) - 0.4)
    axes.set_xticks(range(len(modes)), modes, fontsize=8.5)
    axes.tick_params(axis="both", length=0)
    _open_frame(axes, "top", "right", "left")
    episodes = final[modes[0]]["episodes"] if modes else 0
    axes.set_xlabel(f"final, {episodes:,} episodes\nat {final['policy_steps']:,} policy steps", fontsize=9, color=INK)
    bottom, top = axes.get_ylim()
    height = (top - bottom) / 10  # height of a number
    for x, mode in enumerate(modes):
        mean, (low, high) = final[mode]["mean"], final[mode]["ci95"]
        up = mean < (bottom + top) / 2  # put the number on the side of its mark with more space
        axes.set_ylim(min(axes.get_ylim()[0], low - height * (not up)), max(axes.get_ylim()[1], high + height * up))
        style = {"ha": "center", "va": "bottom" if up else "top", "fontweight": "bold", "color": FINAL_MARKS[mode][0]}
        axes.annotate(_minus(number(mean)), (x, high if up else low), (0, 9 if up else -9), **BESIDE, **style)


def _draw_intervals(
    axes: Axes, xs: Sequence[int], evaluations: Sequence[Any], colour: str, mark: str, size: float, label: str = ""
) -> None:
    """Draw the mean return of each evaluation with its 95 % interval.

    Args:
        axes: the panel.
        xs: x position of each evaluation.
        evaluations: mappings with `mean` and `ci95` (lower and upper end of the interval).
        colour: color of markers and intervals.
        mark: Matplotlib's code of the marker, such as "o".
        size: size of the marker in points.
        label: entry in the legend; "" for none.
    """
    means = [evaluation["mean"] for evaluation in evaluations]
    # By rounding, an interval may end slightly before its mean, but the length of a bar cannot be negative.
    below = [max(0.0, evaluation["mean"] - evaluation["ci95"][0]) for evaluation in evaluations]
    above = [max(0.0, evaluation["ci95"][1] - evaluation["mean"]) for evaluation in evaluations]
    style = {"color": colour, "linestyle": "", "marker": mark, "markersize": size, "markeredgecolor": "white"}
    drawn = axes.errorbar(
        xs, means, yerr=[below, above], label=label, elinewidth=1.2, capsize=2.5, zorder=5, clip_on=False, **style
    )
    for cap in drawn.lines[1]:
        cap.set_markeredgecolor(colour)  # with the marks' white edge the caps would be invisible


def _draw_baseline(panels: Sequence[Axes], baseline: Mapping[str, Any] | None) -> None:
    if baseline is None:
        return
    for axes in panels:
        axes.axhline(baseline["mean"], color=SOFT, linewidth=1.2, linestyle=(0, (5, 3)), zorder=2)
    text, place = f"random\n{_minus(number(baseline['mean']))}", panels[-1].get_yaxis_transform()
    style = {"va": "center", "color": SOFT, "annotation_clip": False}
    panels[-1].annotate(text, (1.0, baseline["mean"]), (5, 0), xycoords=place, **BESIDE, **style)


def _frame(figure: Figure, axes: Axes) -> None:
    """Label the axes, start the step axis at 0, and put the legend above the plot, so that it covers no data."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel("policy steps", color=INK)
    axes.set_ylabel("episode return", color=INK)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _minus(f"{value:,.6g}")))
    _open_frame(axes, "top", "right")
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        axes.text(0.5, 0.75, "no data yet", transform=axes.transAxes, ha="center", color=SOFT)
        axes.set_xticks([])
        return
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    where = {"loc": "upper left", "bbox_to_anchor": (0.005, 0.925), "ncols": len(handles), "borderaxespad": 0.0}
    legend = figure.legend(handles, labels, frameon=False, fontsize=9, columnspacing=1.8, handletextpad=0.6, **where)
    legend.set_in_layout(False)  # otherwise a long legend would make the plot narrower


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")
