"""Means over seeds, and differences of means, with 95 % confidence intervals (Student's t, Welch's t)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.learning_pages import spell_interval
from flows.compare.statistics import Interval
from flows.registry.gate import against_baseline
from rlcore.evaluation.play import student_t_975


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of at least two values and its 95 % confidence interval."""
    mean = statistics.fmean(values)
    half = student_t_975(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return Interval(mean, mean - half, mean + half)


def difference_interval(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the difference of two means of independent values and its 95 % confidence interval."""
    sides = [
        {"mean": statistics.fmean(side), "std": statistics.stdev(side), "episodes": len(side)}
        for side in (first, second)
    ]
    verdict = against_baseline(*sides)
    return Interval(verdict.difference, verdict.low, verdict.high)


def spell_mean(values: Sequence[float]) -> str:
    """Return the mean of the values and its interval as text, for example "480 (455 to 500)"."""
    return spell_interval(mean_interval(values))
