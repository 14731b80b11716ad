"""Statistics of a few runs (Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice", arXiv:2108.13264).

The scores of a side (a group of runs) are a list with one array [..., N] for each environment. The last axis has the N
seeds. For learning curves, the axes before it are the points of the curve; for single scores, there are no other axes.
Every side has the same environments in the same order.

Intervals are stratified percentile bootstrap intervals: seeds are resampled within each environment, so a replicate has
the same number of runs of each environment as the data. With few seeds these intervals are too narrow
(docs/comparing.md has numbers), so sides with fewer than ten seeds are not ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Scores = Sequence[Array]  # an array [..., N] for each environment
Aggregate = Callable[[Scores], Array]  # arrays [..., N] -> [...]

LEVEL = 0.95
REPLICATES = 10_000  # bootstrap replicates of numbers
BAND_REPLICATES = 2_000  # bootstrap replicates of bands around curves, which need less precision


class Interval(NamedTuple):
    """Estimate with the lower and upper bound of its confidence interval.

    The estimate and the bounds are numbers, or arrays with one value for each point of a learning curve.
    """

    value: Any
    low: Any
    high: Any

    def beyond(self, point: float) -> bool:
        """Return True if the interval does not contain the number `point`."""
        return bool(self.low > point or self.high < point)


def iqm(scores: Scores) -> Array:
    """Compute the interquartile mean (arXiv:2108.13264, section 4.3) over the runs of all environments.

    The lowest quarter and the highest quarter of the scores are ignored; the number of ignored scores is rounded down.
    """
    runs = np.sort(np.concatenate(list(scores), axis=-1), axis=-1)
    cut = runs.shape[-1] // 4
    return runs[..., cut : runs.shape[-1] - cut].mean(axis=-1)


def mean(scores: Scores) -> Array:
    """Compute the mean over environments of the means over seeds."""
    return _means(scores).mean(axis=0)


def median(scores: Scores) -> Array:
    """Compute the median over environments of the means over seeds; with one environment, the median over seeds."""
    return np.median(_means(scores), axis=0) if len(scores) > 1 else np.median(scores[0], axis=-1)


def optimality_gap(scores: Scores) -> Array:
    """Compute the optimality gap (arXiv:2108.13264, section 4.3).

    This is the mean of max(1 - score, 0) over seeds, then over environments.
    """
    return mean([np.maximum(1.0 - one, 0.0) for one in scores])


def share_above(levels: Array) -> Aggregate:
    """Return a function that computes the performance profile (arXiv:2108.13264, section 4.2) of scores.

    The profile has one value for each of the P `levels`: the fraction of runs with a score above the level, averaged
    over environments.
    """
    return lambda scores: mean([one[..., None, :] > levels[:, None] for one in scores])


def bootstrap(
    scores: Scores,
    aggregate: Aggregate,
    rng: np.random.Generator,
    level: float = LEVEL,
    replicates: int = REPLICATES,
) -> Interval:
    """Compute an aggregate, such as the interquartile mean, and its bootstrap confidence interval.

    Args:
        scores: for each environment, an array [..., N] with the N seeds in the last axis.
        aggregate: function from scores to the aggregate.
        rng: random generator of the bootstrap.
        level: confidence level of the interval.
        replicates: number of bootstrap replicates.

    Returns:
        The aggregate of `scores` with its interval.
    """
    drawn = aggregate(_draw(scores, [_rows(one, rng, replicates) for one in scores]))
    return _interval(aggregate(scores), drawn, level)


def difference(
    first: Scores,
    second: Scores,
    aggregate: Aggregate,
    rng: np.random.Generator,
    paired: bool,
    level: float = LEVEL,
    replicates: int = REPLICATES,
) -> Interval:
    """Return the aggregate of the first side (group of runs) minus that of the second, with its bootstrap interval.

    Args:
        first: scores of the first side.
        second: scores of the second side.
        aggregate: function that computes one number from the scores of a side, such as `iqm`.
        rng: random generator of the bootstrap.
        paired: True if the n-th runs of both sides have the same seed; they are then resampled together.
        level: confidence level of the interval.
        replicates: number of bootstrap replicates.

    Returns:
        The difference with its interval.
    """
    rows = _rows_of_both(first, second, rng, paired, replicates)
    drawn = aggregate(_draw(first, [a for a, _ in rows])) - aggregate(_draw(second, [b for _, b in rows]))
    return _interval(aggregate(first) - aggregate(second), drawn, level)


def improvement(
    first: Scores,
    second: Scores,
    rng: np.random.Generator,
    paired: bool,
    level: float = LEVEL,
    replicates: int = REPLICATES,
) -> Interval:
    """Return the probability of improvement of the first group of runs over the second (arXiv:2108.13264, section 4.3).

    This is the probability that a run of the first group has a higher score than a run of the second group. It is
    computed as Mann and Whitney's U / (N·M), averaged over environments; a tie counts half. N and M are the numbers of
    runs of the two groups.

    Args:
        first: scores of the first group.
        second: scores of the second group.
        rng: random generator of the bootstrap.
        paired: True if the n-th runs of both groups have the same seed; they are then resampled together.
        level: confidence level of the interval.
        replicates: number of bootstrap replicates.

    Returns:
        The probability with its bootstrap confidence interval.
    """
    wins = [np.sign(a[:, None] - b) / 2 + 0.5 for a, b in zip(first, second, strict=True)]  # [N, M]
    rows = _rows_of_both(first, second, rng, paired, replicates)
    drawn = [
        np.einsum("rn,nm,rm->r", _times(a, len(win)), win, _times(b, win.shape[1])) / win.size
        for win, (a, b) in zip(wins, rows, strict=True)
    ]
    return _interval(np.mean([win.mean() for win in wins]), np.mean(drawn, axis=0), level)


def correlation(first: Scores, second: Scores) -> float:
    """Return Pearson's correlation between the scores of two groups of runs with the same seeds.

    For each group and environment, the mean over the runs is subtracted first. Returns 0 if the remaining scores of a
    group are all 0.
    """
    a, b = (np.concatenate([one - one.mean() for one in side]) for side in (first, second))
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else 0.0


def _means(scores: Scores) -> Array:
    return np.stack([one.mean(axis=-1) for one in scores])


def _rows(one: Array, rng: np.random.Generator, replicates: int) -> Array:
    """Draw the seeds of R bootstrap replicates with replacement; return their indices [R, N]."""
    return rng.integers(one.shape[-1], size=(replicates, one.shape[-1]))


def _rows_of_both(
    first: Scores, second: Scores, rng: np.random.Generator, paired: bool, replicates: int
) -> list[tuple[Array, Array]]:
    both = []
    for a, b in zip(first, second, strict=True):
        assert not paired or a.shape[-1] == b.shape[-1], (a.shape, b.shape)
        rows = _rows(a, rng, replicates)
        both.append((rows, rows if paired else _rows(b, rng, replicates)))
    return both


def _draw(scores: Scores, rows: Sequence[Array]) -> list[Array]:
    """Return the scores of the R bootstrap replicates, an array [R, ..., N] for each environment.

    `rows` has the indices [R, N] of the drawn seeds for each environment.
    """
    return [np.moveaxis(one[..., index], -2, 0) for one, index in zip(scores, rows, strict=True)]


def _times(rows: Array, count: int) -> Array:
    """Count how often each of the R bootstrap replicates contains each of the N = `count` seeds.

    `rows` has the indices [R, N] of the drawn seeds; the result has shape [R, N], too.
    """
    return (rows[:, :, None] == np.arange(count)).sum(axis=1).astype(float)


def _interval(value: Any, drawn: Array, level: float) -> Interval:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Interval(value, low, high)
