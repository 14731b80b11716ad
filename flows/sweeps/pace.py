"""Distance, in policy steps, at which a sweep's trials are judged, and what one was worth after so many of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from flows.sweeps.space import Params
from rlcore.config.groups import RunConfig


@dataclass(frozen=True)
class Pace:
    """Distances in policy steps.

    Attributes:
        every: between two evaluations; of several distances the largest.
        longest: of an iteration of any trial: no trial is evaluated more often than once in one.
        budget: of one training; of several budgets the largest.
    """

    every: int
    longest: int
    budget: int

    @staticmethod
    def of(tried: Sequence[tuple[Params, RunConfig]]) -> Pace:
        """The pace of a sweep from points of its space, where each key is varied by itself, the first one's at none."""
        first, lengths = tried[0][0], [_iteration(config) for _, config in tried]
        longest: dict[str, float] = {}  # key -> how many times as long it makes an iteration
        for (point, _), length in zip(tried, lengths, strict=True):
            varied = next((key for key in point if point[key] != first.get(key)), "")
            longest[varied] = max(longest.get(varied, 1.0), length / lengths[0])
        return Pace(
            max(config.evaluation_every for _, config in tried),
            iteration := round(lengths[0] * prod(longest.values())),
            max(iteration, *(config.algo.total_steps for _, config in tried)),
        )

    @property
    def unit(self) -> int:
        """The distance in which every trial is evaluated once."""
        return max(self.every, self.longest)

    @property
    def notice(self) -> str | None:
        """The sentence to be said before the sweep: that some trials are evaluated less often than others."""
        if self.longest <= self.every:
            return None
        return (
            f"evaluation.every={self.every}: an iteration of some trials is up to {self.longest} policy steps, so they "
            "are evaluated less often than others; all are judged by policy steps, and evaluated alike with "
            f"evaluation.every={self.longest}"
        )

    def recent(self, evaluations: Sequence[tuple[int, float]], count: int) -> list[float]:
        """The scores of the evaluations (policy steps, score) in the last `count` distances, the last one at least."""
        if not evaluations:
            return []
        last = evaluations[-1][0] // self.every
        return [score for steps, score in evaluations if steps // self.every > last - count]

    def read_scores(self, trainings: Sequence[Sequence[tuple[int, float]]]) -> Iterator[tuple[int, float]]:
        """Policy steps over all trainings of a trial, each with a budget of its own, and score of their evaluations."""
        for number, evaluations in enumerate(trainings):
            for steps, score in evaluations:
                yield number * self.budget + steps, score

    def score_at(self, scores: Mapping[int, float], steps: int) -> float | None:
        """The worth of a trial after so many policy steps, by its scores as `read_scores` has them.

        On the line between two evaluations of one training, and after the last what that was; None before the first.
        """
        begin = (steps - 1) // self.budget * self.budget
        # None comes before `every`: sweeps of earlier versions counted evaluations, as 1, 2, 3.
        known = [at for at in sorted(scores) if begin + self.every <= at <= begin + self.budget]
        if not known or steps < known[0]:
            return None
        return float(np.interp(steps, known, [scores[at] for at in known]))


def _iteration(config: RunConfig) -> int:
    """Policy steps of an iteration."""
    return config.algo.collect_length * config.width
