"""Statistics of a few runs (Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice", arXiv:2108.13264).

Scores of one side are a list with an array [..., N] for each environment: N seeds behind each other, in front of them
the places of a curve, if there are any. Every side has the same environments in the same order.

An interval is a percentile bootstrap, stratified: seeds are drawn anew within each environment, so that a replicate has
as many runs of each as there are. With few seeds it is too narrow (docs/comparing.md has figures), which is why nothing
is ranked on fewer than ten.
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
REPLICATES = 10_000  # of figures
BAND_REPLICATES = 2_000  # of bands around curves, whose ends are drawn and not read


class Interval(NamedTuple):
    """An estimate with the ends of its interval; numbers, or arrays along a curve."""

    value: Any
    low: Any
    high: Any

    def beyond(self, point: float) -> bool:
        """Tell whether all of the interval lies on one side of a point."""
        return bool(self.low > point or self.high < point)


def iqm(scores: Scores) -> Array:
    """Interquartile mean (section 4.3): the mean of all runs but a quarter, rounded down, at either end."""
    runs = np.sort(np.concatenate(list(scores), axis=-1), axis=-1)
    cut = runs.shape[-1] // 4
    return runs[..., cut : runs.shape[-1] - cut].mean(axis=-1)


def mean(scores: Scores) -> Array:
    """The mean over environments of the means over seeds."""
    return _means(scores).mean(axis=0)


def median(scores: Scores) -> Array:
    """The median over environments of the means over seeds, as in published tables; of one alone, over seeds."""
    return np.median(_means(scores), axis=0) if len(scores) > 1 else np.median(scores[0], axis=-1)


def optimality_gap(scores: Scores) -> Array:
    """By how much normalised scores fall short of 1, what is above it not counted (section 4.3)."""
    return mean([np.maximum(1.0 - one, 0.0) for one in scores])


def share_above(levels: Array) -> Aggregate:
    """The performance profile (section 4.2): the share of runs above each level [P], the mean over environments."""
    return lambda scores: mean([one[..., None, :] > levels[:, None] for one in scores])


def bootstrap(
    scores: Scores,
    aggregate: Aggregate,
    rng: np.random.Generator,
    level: float = LEVEL,
    replicates: int = REPLICATES,
) -> Interval:
    """An aggregate with its interval."""
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
    """The first side's aggregate minus the second's.

    Args:
        first: scores of one side.
        second: scores of the other.
        aggregate: of which.
        rng: draws.
        paired: the n-th run of one side has the seed of the n-th of the other; both are drawn together then.
        level: of the interval.
        replicates: how often seeds are drawn anew.

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
    """The probability that a run of the first side beats one of the second (section 4.3); arguments as `difference`.

    Mann and Whitney's U over N·M, in which a tie counts half; the mean over environments.
    """
    wins = [np.sign(a[:, None] - b) / 2 + 0.5 for a, b in zip(first, second, strict=True)]  # [N, M]
    rows = _rows_of_both(first, second, rng, paired, replicates)
    drawn = [
        np.einsum("rn,nm,rm->r", _times(a, len(win)), win, _times(b, win.shape[1])) / win.size
        for win, (a, b) in zip(wins, rows, strict=True)
    ]
    return _interval(np.mean([win.mean() for win in wins]), np.mean(drawn, axis=0), level)


def correlation(first: Scores, second: Scores) -> float:
    """Pearson's correlation of pairs of runs, environments centred; 0 where one side does not vary."""
    a, b = (np.concatenate([one - one.mean() for one in side]) for side in (first, second))
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else 0.0


def _means(scores: Scores) -> Array:
    return np.stack([one.mean(axis=-1) for one in scores])


def _rows(one: Array, rng: np.random.Generator, replicates: int) -> Array:
    """Seeds that every replicate has: [R, N]."""
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
    """The replicates: arrays [R, ..., N]."""
    return [np.moveaxis(one[..., index], -2, 0) for one, index in zip(scores, rows, strict=True)]


def _times(rows: Array, count: int) -> Array:
    """Number of times that a replicate has each seed: [R, N] of indices -> [R, N] of numbers."""
    return (rows[:, :, None] == np.arange(count)).sum(axis=1).astype(float)


def _interval(value: Any, drawn: Array, level: float) -> Interval:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Interval(value, low, high)
