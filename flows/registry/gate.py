"""Who is champion: decided by differences of returns that exceed their noise, in numbers and in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy.special import stdtrit

from flows.report.sentences import between, number, signed

LEVEL = 0.975  # of Student's t, for both ends of a 95 % interval


class Verdict(NamedTuple):
    """One comparison, with the 95 % interval of its difference."""

    better: bool  # the whole interval lies above 0
    difference: float  # mean return of the new model minus that of the other, in the environment's unit
    low: float
    high: float
    words: str  # the verdict as a sentence


def against_baseline(candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> Verdict:
    """Compare an evaluation with the random policy's, `mean`, `std` and `episodes` of each.

    Welch's interval: the seeds differ, and so may the spread.
    """
    difference = candidate["mean"] - baseline["mean"]
    parts = [side["std"] ** 2 / side["episodes"] for side in (candidate, baseline)]
    terms = [part**2 / (side["episodes"] - 1) for part, side in zip(parts, (candidate, baseline), strict=True) if part]
    freedom = max(1, math.floor(sum(parts) ** 2 / sum(terms))) if terms else 1
    half = float(stdtrit(freedom, LEVEL)) * math.sqrt(sum(parts))
    return _verdict(difference, half, f"the random baseline ({number(baseline['mean'])})", candidate["episodes"])


def paired(candidate: Sequence[float], champion: Sequence[float], champion_name: str) -> Verdict:
    """Compare returns on the same N > 1 episodes, [N] each: the interval is of the mean of the pairs' differences."""
    differences = [new - old for new, old in zip(candidate, champion, strict=True)]
    count = len(differences)
    half = float(stdtrit(count - 1, LEVEL)) * statistics.stdev(differences) / math.sqrt(count)
    other = f"{champion_name} ({number(statistics.fmean(champion))}) on the same fresh seeds"
    return _verdict(statistics.fmean(differences), half, other, count)


def _verdict(difference: float, half: float, other: str, episodes: int) -> Verdict:
    low, high = difference - half, difference + half
    better = low > 0
    what = "beats" if better else "does not beat"
    beyond = "beyond" if better or high < 0 else "within"
    interval = f"95 % interval {between(low, high)} over {episodes} episodes, {beyond} the noise"
    return Verdict(better, difference, low, high, f"{what} {other}: difference {signed(difference)}, {interval}")
