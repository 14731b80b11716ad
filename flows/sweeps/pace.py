"""Intervals, in policy steps, at which the trials of a sweep are compared, and the score of a trial at a given step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from flows.sweeps.space import Params
from rlcore.config.groups import RunConfig


@dataclass(frozen=True)
class TrialIntervals:
    """Lengths, in policy steps, that determine when the trials of a sweep are evaluated.

    If trials have different values, each attribute is the largest one.

    Attributes:
        every: interval between two evaluations (`evaluation.every`).
        longest: length of the longest iteration of any trial; a run is evaluated at most once in an iteration.
        budget: length of one run (`algo.total_steps`).
    """

    every: int
    longest: int
    budget: int

    @staticmethod
    def of(tried: Sequence[tuple[Params, RunConfig]]) -> TrialIntervals:
        """Compute the intervals of a sweep from configs with different values of the varied keys.

        Each config differs from the first one in one key. For each key, the factor by which it can lengthen an
        iteration is computed. `longest` is the first config's iteration multiplied by the factors of all keys.
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
        """Number of policy steps in which every trial is evaluated at least once."""
        return max(self.every, self.longest)

    @property
    def notice(self) -> str | None:
        """Notice that some trials are evaluated less often than others; None if all are evaluated equally often."""
        if self.longest <= self.every:
            return None
        return (
            f"evaluation.every={self.every}: some trials have iterations of up to {self.longest} policy steps, so they "
            "are evaluated less often than others; the pruner compares trials at equal policy steps. To "
            f"evaluate all trials equally often, set evaluation.every={self.longest}"
        )

    def recent(self, evaluations: Sequence[tuple[int, float]], count: int) -> list[float]:
        """Return the scores of the evaluations in the last `count` intervals of `every` policy steps.

        The score of the last evaluation is always included. `evaluations` are pairs (policy steps, score).
        """
        if not evaluations:
            return []
        last = evaluations[-1][0] // self.every
        return [score for steps, score in evaluations if steps // self.every > last - count]

    def read_scores(self, trainings: Sequence[Sequence[tuple[int, float]]]) -> Iterator[tuple[int, float]]:
        """Yield (policy steps, score) of the evaluations of all runs of a trial.

        Policy steps are counted over the whole trial: run number i starts at i * budget.
        """
        for number, evaluations in enumerate(trainings):
            for steps, score in evaluations:
                yield number * self.budget + steps, score

    def score_at(self, scores: Mapping[int, float], steps: int) -> float | None:
        """Return the score of a trial after `steps` policy steps, counted as in `read_scores`.

        Scores are interpolated linearly between two evaluations of one run. After its last evaluation, the last score
        is returned; before its first evaluation, None.
        """
        begin = (steps - 1) // self.budget * self.budget
        known = [at for at in sorted(scores) if begin < at <= begin + self.budget]
        if not known or steps < known[0]:
            return None
        return float(np.interp(steps, known, [scores[at] for at in known]))


def _iteration(config: RunConfig) -> int:
    """Return the policy steps of an iteration."""
    return config.algo.collect_length * config.width
