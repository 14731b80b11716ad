"""Pairwise comparison of sides (groups of runs): difference of interquartile means, and probability of improvement."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flows.compare import statistics
from flows.compare.records import Record
from flows.compare.scores import Scale
from flows.compare.selection import Selection
from flows.compare.statistics import Interval

Values = Mapping[str, Mapping[str, NDArray[np.float64]]]  # side -> task -> returns [N]


@dataclass(frozen=True)
class Pair:
    """Comparison of two sides (groups of runs).

    Attributes:
        first: name of the first side.
        second: name of the second side.
        difference: interquartile mean of the first side minus that of the second. Its unit is the return if the pair
            is compared on one environment, and the normalized score if it is compared over several environments.
        improvement: probability that a run of the first side is better than a run of the second side.
        paired: True if both sides have the same seeds. The bootstrap has then resampled pairs of runs, one run of each
            side with the same seed.
        correlation: Pearson correlation over these pairs between the values of the first side's run and the second
            side's run; None if `paired` is False.
    """

    first: str
    second: str
    difference: Interval
    improvement: Interval
    paired: bool
    correlation: float | None

    def upright(self) -> Pair:
        """Return this comparison of two groups of runs so that the first has the higher interquartile mean.

        The groups are exchanged if necessary.
        """
        if self.difference.value >= 0:
            return self
        difference, chance = self.difference, self.improvement
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=Interval(-difference.value, -difference.high, -difference.low),
            improvement=Interval(1 - chance.value, 1 - chance.high, 1 - chance.low),
        )

    @property
    def better(self) -> str | None:
        """Name of the significantly better side (group of runs), or None.

        A side is significantly better if two conditions hold and show the same direction: the interval of `difference`
        does not contain 0, and the interval of `improvement` does not contain 0.5.
        """
        if not (self.difference.beyond(0.0) and self.improvement.beyond(0.5)):
            return None
        ahead = self.difference.low > 0
        return (self.first if ahead else self.second) if ahead == (self.improvement.low > 0.5) else None


def pairs_of(
    chosen: Selection,
    tasks: Sequence[str],
    scales: Mapping[str, Scale],
    values: Values,
    level: float,
    rng: np.random.Generator,
) -> list[Pair]:
    """Compare each side (group of runs) with each other side.

    Args:
        chosen: the compared runs.
        tasks: the environments on which runs are compared. With one environment, differences are in returns; with
            several environments, in normalized scores.
        scales: environment -> conversion of its returns to normalized scores.
        values: side -> environment -> returns of the runs.
        level: confidence level of the intervals.
        rng: random generator of the bootstrap.

    Returns:
        One comparison for each two sides, in the order of the sides.
    """
    return [_pair(a, b, chosen, tasks, scales, values, level, rng) for a, b in itertools.combinations(values, 2)]


def _pair(
    first: str,
    second: str,
    chosen: Selection,
    tasks: Sequence[str],
    scales: Mapping[str, Scale],
    values: Values,
    level: float,
    rng: np.random.Generator,
) -> Pair:
    both = [[values[name][task] for task in tasks] for name in (first, second)]
    paired = all(_same_seeds(chosen.counted[first][task], chosen.counted[second][task]) for task in tasks)
    if len(tasks) > 1:
        both = [[scales[task].score(v) for task, v in zip(tasks, side, strict=True)] for side in both]
    difference = statistics.difference(both[0], both[1], statistics.iqm, rng, paired, level)
    improvement = statistics.improvement(both[0], both[1], rng, paired, level)
    luck = statistics.correlation(both[0], both[1]) if paired else None
    return Pair(first, second, difference, improvement, paired, luck)


def _same_seeds(first: Sequence[Record], second: Sequence[Record]) -> bool:
    """Return True if two groups of runs have the same seeds in the same order, and each seed only once."""
    seeds = [record.seed for record in first]
    return len(seeds) == len(set(seeds)) and seeds == [record.seed for record in second]
