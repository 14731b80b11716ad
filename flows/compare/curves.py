"""Learning curves of a side (a group of runs): the runs on one grid, their interquartile mean and its 95 % band."""

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
        x: [P]; policy steps, seconds of training, or fraction of the planned policy steps.
        band: interquartile mean over the runs [P] and its 95 % confidence interval.
        runs: the curves of the individual runs.
    """

    x: Array
    band: Interval
    runs: Sequence[Run]


def against_steps(comparison: Comparison, side: str, task: str) -> Curve | None:
    """Return a side's curve of returns by policy steps; None if a run has fewer than two logged values."""
    return curve_of([[_steps(comparison, record) for record in comparison.selection.counted[side][task]]])


def against_time(comparison: Comparison, side: str, task: str, name: str) -> Curve | None:
    """Return a side's curve of returns by seconds of training; None if a run has logged no times.

    `name` selects how the seconds are measured: it is a key of `CLOCKS`.
    """
    records = comparison.selection.counted[side][task]
    if any(len(record.clock(name)) < 2 for record in records):
        return None
    return curve_of([[_at_times(record.clock(name), *_steps(comparison, record)) for record in records]])


def against_budget(comparison: Comparison, side: str) -> Curve | None:
    """Return a side's curve of normalized scores over all environments.

    Its x axis is the fraction of the planned policy steps. The bootstrap resamples runs within each environment.
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
    """Return the curve of a run with seconds as x.

    The curve is marked so that its last value is used after its end, while slower runs continue.
    """
    clock = np.array(line, dtype=float)
    return np.interp(x, clock[:, 0], clock[:, 1]), values, True


def curve_of(tasks: Sequence[Sequence[Run]]) -> Curve | None:
    """Interpolate the runs of each environment on one grid and return their curve.

    The grid ends where the shortest run ends. Runs with a last value that is kept after their end do not shorten the
    grid. Returns None if a run has fewer than two points, or if the runs have no common range of x.
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
