"""Computation of the numbers of a comparison, most of them with confidence intervals.

A side is a group of runs that is compared with other groups. The numbers are aggregates of each side (such as the
interquartile mean), differences of each two sides, policy steps until a threshold is reached, and cost of training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.compare import scores, statistics
from flows.compare.gather import Side
from flows.compare.pairs import Pair, pairs_of
from flows.compare.records import Record
from flows.compare.selection import Selection, differing, select
from flows.compare.statistics import Interval

ALL = "all environments"
AGGREGATES = {"iqm": statistics.iqm, "mean": statistics.mean, "median": statistics.median}
EFFORT = ("policy_steps", "updates", "wall_s", "cpu_s")
NEAR = 0.9  # default threshold as a score, if Gymnasium defines no threshold for the environment


@dataclass(frozen=True)
class Comparison:
    """Result of comparing sides (groups of runs).

    Attributes:
        sides: the sides, in the order of the command, including runs that are not compared.
        selection: the compared runs.
        measure: the quantity that ranks runs, such as the mean return of its final evaluation.
        scales: task (environment) -> conversion of returns to normalized scores.
        values: side -> task -> value of each run by `measure`, [N], in the order of `selection.counted`.
        aggregates: task -> side -> name of the aggregate (such as "iqm") -> estimate with its interval, in returns.
            With several tasks, the key ALL has the aggregates over all tasks, in normalized scores. The optimality gap
            is always in normalized scores.
        level: confidence level of each interval in `pairs`. It is above 95 % if there are several pairs (Bonferroni
            correction), so that the intervals of all differences together contain the true values with a probability
            of 95 %, and so do the intervals of all probabilities of improvement.
        pairs: comparisons of each two sides, over all tasks.
        task_level: confidence level of each interval in `by_task`. It is corrected in the same way as `level`, for the
            number of pairs times the number of tasks.
        by_task: task -> comparisons of each two sides on this task, in returns; empty if there is only one task.
        thresholds: task -> return of the threshold in `threshold_steps`.
        threshold_steps: task -> side -> for each run, the policy steps at which its learning curve first reached the
            threshold; None if it did not.
        cost: task -> side -> name of a cost, such as wall time -> mean over the side's runs. A cost that some runs of
            the side have not recorded is omitted.
        config: configuration key -> side -> values, for keys that have different values on different sides.
        notes: remarks for the reader of the report, as sentences.
    """

    sides: list[Side]
    selection: Selection
    measure: scores.Measure
    scales: dict[str, scores.Scale]
    values: dict[str, dict[str, NDArray[np.float64]]]
    aggregates: dict[str, dict[str, dict[str, Interval]]]
    level: float
    pairs: list[Pair]
    task_level: float
    by_task: dict[str, list[Pair]]
    thresholds: dict[str, float]
    threshold_steps: dict[str, dict[str, list[int | None]]]
    cost: dict[str, dict[str, dict[str, float]]]
    config: dict[str, dict[str, list[str]]]
    notes: list[str]

    @property
    def tasks(self) -> list[str]:
        """Environments of the comparison."""
        return self.selection.tasks

    def normalise(self, side: str) -> list[NDArray[np.float64]]:
        """Return the normalized scores of the N runs of a side (group of runs), an array [N] for each environment."""
        return [self.scales[task].score(self.values[side][task]) for task in self.tasks]


def compare(sides: list[Side], threshold: float | None = None) -> Comparison:
    """Compare sides (groups of runs).

    Args:
        sides: two or more sides with their runs.
        threshold: return for "policy steps to the threshold"; with several environments, a score between random (0)
            and solved (1). None uses the return at which the environment is solved.

    Returns:
        The comparison. It is deterministic: the bootstrap uses a fixed seed.

    Raises:
        UserError: If nothing can be compared.
    """
    chosen = select(sides)
    measure, notes = scores.measure(chosen)
    scales = {task: scores.scale(chosen, task, measure) for task in chosen.tasks}
    values = {
        name: {task: np.array([measure.value(run) for run in runs]) for task, runs in tasks.items()}
        for name, tasks in chosen.counted.items()
    }
    limits = {task: _threshold(scales[task], threshold, len(scales) > 1) for task in chosen.tasks}
    names = list(chosen.counted)
    level = 1 - (1 - statistics.LEVEL) / math.comb(len(names), 2)
    task_level = 1 - (1 - level) / len(chosen.tasks)
    rng = np.random.default_rng(0)  # the same runs give the same report
    aggregates = _aggregates(chosen.tasks, scales, values, rng)
    pairs = pairs_of(chosen, chosen.tasks, scales, values, level, rng)
    each = chosen.tasks if len(chosen.tasks) > 1 else []
    return Comparison(
        sides,
        chosen,
        measure,
        scales,
        values,
        aggregates,
        level,
        pairs,
        task_level,
        {task: pairs_of(chosen, [task], scales, values, task_level, rng) for task in each},
        limits,
        {
            task: {
                n: [scores.find_crossing(measure.curve(r), limits[task]) for r in chosen.counted[n][task]]
                for n in names
            }
            for task in chosen.tasks
        },
        {task: {name: _cost(chosen.counted[name][task]) for name in names} for task in chosen.tasks},
        _config(chosen),
        [*chosen.notes, *notes],
    )


def _threshold(scale: scores.Scale, threshold: float | None, several: bool) -> float:
    if threshold is None:
        return scale.back(NEAR) if scale.solved is None else scale.solved
    return scale.back(threshold) if several else threshold


def _aggregates(
    tasks: Sequence[str], scales: dict[str, scores.Scale], values: dict[str, Any], rng: np.random.Generator
) -> dict[str, dict[str, dict[str, Interval]]]:
    """Compute the aggregates (such as the interquartile mean) of each side (group of runs), with their intervals.

    On a single environment, they are returns; over all environments, normalized scores. The optimality gap is always
    a normalized score.

    Args:
        tasks: the environments.
        scales: environment -> conversion of returns to normalized scores.
        values: side -> environment -> returns of the runs [N].
        rng: random generator of the bootstrap.

    Returns:
        Environment, or ALL -> side -> name of the aggregate -> estimate with its interval.
    """
    results: dict[str, dict[str, dict[str, Interval]]] = {}
    for where, which in {**{task: [task] for task in tasks}, **({ALL: tasks} if len(tasks) > 1 else {})}.items():
        results[where] = {}
        for side, of in values.items():
            normalised = [scales[task].score(of[task]) for task in which]
            runs = normalised if where == ALL else [of[task] for task in which]
            figures = {name: statistics.bootstrap(runs, how, rng) for name, how in AGGREGATES.items()}
            gap = statistics.bootstrap(normalised, statistics.optimality_gap, rng)
            results[where][side] = figures | {"optimality_gap": gap}
    return results


def _cost(records: Sequence[Record]) -> dict[str, float]:
    """Return name -> mean over the runs, for each cost of training; costs that are unknown for a run are omitted."""
    of: dict[str, Callable[[Record], float | None]] = {name: lambda r, name=name: r.effort.get(name) for name in EFFORT}
    of["policy_steps"] = lambda r: float(r.policy_steps)
    known = {name: [take(record) for record in records] for name, take in of.items()}
    return {
        name: float(np.mean([v for v in all_ if v is not None])) for name, all_ in known.items() if None not in all_
    }


def _config(chosen: Selection) -> dict[str, dict[str, list[str]]]:
    """Return configuration key -> name of a group of runs -> values, for keys whose values differ between groups."""
    runs = {name: [r for records in tasks.values() for r in records] for name, tasks in chosen.counted.items()}
    differences: dict[str, dict[str, list[str]]] = {}
    for key in differing(record for records in runs.values() for record in records):
        values = {
            name: list(dict.fromkeys(r.config.get(key, "not there") for r in records)) for name, records in runs.items()
        }
        if len({tuple(sorted(of)) for of in values.values()}) > 1:
            differences[key] = values
    return differences
