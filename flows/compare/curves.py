"""Learning curves of a side, which is a group of runs that is compared with other groups.

The curves of its runs are interpolated on one grid of x values. At each grid point, the interquartile mean over the
runs and its 95 % confidence interval are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.compare import statistics
from flows.compare.records import Record
from flows.compare.result import Comparison
from flows.compare.statistics import Interval
from rlcore.store.series import Line

PLACES = 80  # points of the grid
Array = NDArray[Any]
Run = tuple[Array, Array, bool]  # x ascending, value, True if the last value is kept after the end


@dataclass(frozen=True)
class Curve:
    """Learning curve of a side (a group of runs that is compared).

    Attributes:
        x: the P grid points, [P]; policy steps, seconds of training, or fraction of the planned policy steps.
        band: interquartile mean over the runs at each grid point [P], with its 95 % confidence interval.
        runs: the curves of the individual runs, not interpolated.
    """

    x: Array
    band: Interval
    runs: Sequence[Run]


def against_steps(comparison: Comparison, side: str, task: str) -> Curve | None:
    """Return the learning curve of a side (group of runs): returns on the environment `task` by policy steps.

    Returns None if a run has fewer than two logged values.
    """
    return curve_of([[_steps(comparison, record) for record in comparison.selection.counted[side][task]]])


def against_time(comparison: Comparison, side: str, task: str, name: str) -> Curve | None:
    """Return the learning curve of a side (group of runs): returns on the environment `task` by seconds of training.

    `name` is the metric of the seconds: "Time/wall_s" for wall time or "Time/cpu_s" for processor time. Returns None if
    a run has fewer than two logged values.
    """
    records = comparison.selection.counted[side][task]
    if any(len(record.clock(name)) < 2 for record in records):
        return None
    return curve_of([[_at_times(record.clock(name), *_steps(comparison, record)) for record in records]])


def against_budget(comparison: Comparison, side: str) -> Curve | None:
    """Return the learning curve of a side (group of runs): normalized scores over its runs on all environments.

    The x axis is the fraction of the planned policy steps. The bootstrap for the confidence interval resamples runs
    within each environment. Returns None if a run has fewer than two logged values.
    """
    return curve_of(
        [
            [
                (x / record.budget, comparison.scales[task].score(values), stopped)
                for record in comparison.selection.counted[side][task]
                for x, values, stopped in [_steps(comparison, record)]
            ]
            for task in comparison.tasks
        ]
    )


def _steps(comparison: Comparison, record: Record) -> Run:
    line = np.array(comparison.measure.curve(record), dtype=float).reshape(-1, 2)
    return line[:, 0], line[:, 1], record.status == "stopped_early"


def _at_times(line: Line, x: Array, values: Array, _: bool) -> Run:
    """Convert the curve of a run from policy steps to seconds of training.

    After the last logged value, the converted curve is continued as a constant, because slower runs take longer.
    """
    clock = np.array(line, dtype=float)
    return np.interp(x, clock[:, 0], clock[:, 1]), values, True


def curve_of(tasks: Sequence[Sequence[Run]]) -> Curve | None:
    """Interpolate runs on one grid and return the interquartile mean with its confidence interval.

    The grid ends where the shortest run ends. Runs that are continued as a constant after their last value do not
    shorten the grid.

    Args:
        tasks: for each environment, the curves of its runs: x values, y values, and True if the curve is continued as
            a constant after its last value.

    Returns:
        The curve, or None if a run has fewer than two points or the runs have no common range of x.
    """
    runs = [run for task in tasks for run in task]
    if any(len(x) < 2 for x, _, _ in runs):
        return None
    start = max(x[0] for x, _, _ in runs)
    end = min((x[-1] for x, _, holds in runs if not holds), default=max(x[-1] for x, _, _ in runs))
    if start >= end:
        return None
    grid = np.linspace(start, end, PLACES)
    on_grid = [np.stack([np.interp(grid, x, values) for x, values, _ in task], axis=-1) for task in tasks]  # [P, N]
    rng = np.random.default_rng(0)
    band = statistics.bootstrap(on_grid, statistics.iqm, rng, replicates=statistics.BAND_REPLICATES)
    return Curve(grid, band, runs)
