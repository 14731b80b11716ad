"""Learning curves of a side: its runs on one grid, their interquartile mean and its confidence band."""

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
    """Learning curve of a side.

    Attributes:
        x: [P]; policy steps, seconds or fraction of the budget.
        band: interquartile mean [P] and its 95 % interval.
        runs: the individual runs.
    """

    x: Array
    band: Interval
    runs: Sequence[Run]


def against_steps(comparison: Comparison, side: str, task: str) -> Curve | None:
    """Return the curve of returns by policy steps; None if runs have too few points."""
    return curve_of([[_steps(comparison, record) for record in comparison.selection.counted[side][task]]])


def against_time(comparison: Comparison, side: str, task: str, name: str) -> Curve | None:
    """Return the curve of returns by seconds of training (a clock of `CLOCKS`); None if a run has no times."""
    records = comparison.selection.counted[side][task]
    if any(len(record.clock(name)) < 2 for record in records):
        return None
    return curve_of([[_at_times(record.clock(name), *_steps(comparison, record)) for record in records]])


def against_budget(comparison: Comparison, side: str) -> Curve | None:
    """Return the curve of scores over all environments by the fraction of the budget.

    The bootstrap is stratified by environment.
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
    """Return a run with times as x; its last value is kept while slower runs continue."""
    clock = np.array(line, dtype=float)
    return np.interp(x, clock[:, 0], clock[:, 1]), values, True


def curve_of(tasks: Sequence[Sequence[Run]]) -> Curve | None:
    """Interpolate the runs of each environment on one grid and return their curve.

    The grid ends with the shortest run, except runs whose last value is kept. Returns None if a run has fewer than two
    points, or if the runs have no common range.
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
