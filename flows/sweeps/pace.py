"""Intervals at which the trials of a sweep are evaluated, and the score of a trial after a number of policy steps.

The pruner uses both to compare trials after equal numbers of policy steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from flows.sweeps.space import Params
from rlcore.config.groups import RunConfig


@dataclass(frozen=True)
class TrialIntervals:
    """Intervals, in policy steps, that determine when the trials of a sweep are evaluated.

    If a key that the sweep varies affects an interval, the attribute is the largest interval of all trials.

    Attributes:
        every: interval between two evaluations (`evaluation.every`).
        longest: length of an iteration (collect and update). A run is evaluated at most once per iteration.
        budget: length of one run (`algo.total_steps`).
    """

    every: int
    longest: int
    budget: int

    @staticmethod
    def of(tried: Sequence[tuple[Params, RunConfig]]) -> TrialIntervals:
        """Compute the evaluation intervals of a sweep's trials from the configs that are checked before any trial.

        The longest iteration is estimated: for each varied key, the largest factor by which it lengthens an iteration
        is computed, and the iteration of the first config is multiplied by the factors of all keys.

        Args:
            tried: pairs (values of the varied keys, config). Each config differs from the first one in one key.

        Returns:
            The intervals.
        """
        first, lengths = tried[0][0], [_iteration(config) for _, config in tried]
        longest: dict[str, float] = {}  # key -> factor by which it can lengthen an iteration
        for (point, _), length in zip(tried, lengths, strict=True):
            varied = next((key for key in point if point[key] != first.get(key)), "")
            longest[varied] = max(longest.get(varied, 1.0), length / lengths[0])
        return TrialIntervals(
            max(config.evaluation_every for _, config in tried),
            iteration := round(lengths[0] * prod(longest.values())),
            max(iteration, *(config.algo.total_steps for _, config in tried)),
        )

    @property
    def unit(self) -> int:
        """Smallest number of policy steps within which every trial is evaluated at least once."""
        return max(self.every, self.longest)

    @property
    def notice(self) -> str | None:
        """Message that some trials are evaluated less often than others; None if all are evaluated equally often."""
        if self.longest <= self.every:
            return None
        return (
            f"evaluation.every={self.every}: some trials have iterations of up to {self.longest} policy steps, so they "
            "are evaluated less often than others; the pruner compares trials at equal policy steps. To "
            f"evaluate all trials equally often, set evaluation.every={self.longest}"
        )

    def recent(self, evaluations: Sequence[tuple[int, float]], count: int) -> list[float]:
        """Return the scores of a run's latest evaluations: those in the last `count` evaluation intervals.

        Args:
            evaluations: pairs (policy steps, score) of the run, in order.
            count: number of intervals of `every` policy steps. The last one contains the last evaluation.

        Returns:
            The scores; empty if the run has no evaluations.
        """
        if not evaluations:
            return []
        last = evaluations[-1][0] // self.every
        return [score for steps, score in evaluations if steps // self.every > last - count]

    def read_scores(self, trainings: Sequence[Sequence[tuple[int, float]]]) -> Iterator[tuple[int, float]]:
        """Concatenate the evaluations of a trial's runs, as if the runs were trained one after another.

        Args:
            trainings: for each run, the pairs (policy steps, score) of its evaluations.

        Yields:
            Pairs (policy steps, score). The policy steps of run number i start at i * budget.
        """
        for number, evaluations in enumerate(trainings):
            for steps, score in evaluations:
                yield number * self.budget + steps, score

    def score_at(self, scores: Mapping[int, float], steps: int) -> float | None:
        """Return the score of a trial after a number of policy steps.

        Between two evaluations of one run, the score is interpolated linearly. After the last evaluation of a run, its
        last score is used.

        Args:
            scores: policy steps -> score, as from `read_scores`.
            steps: number of policy steps; the steps of run number i start at i * budget.

        Returns:
            The score; None before the first evaluation of a run.
        """
        begin = (steps - 1) // self.budget * self.budget
        known = [at for at in sorted(scores) if begin < at <= begin + self.budget]
        if not known or steps < known[0]:
            return None
        return float(np.interp(steps, known, [scores[at] for at in known]))


def _iteration(config: RunConfig) -> int:
    """Return the number of policy steps that one iteration of a run collects."""
    return config.algo.collect_length * config.width
