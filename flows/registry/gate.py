"""Decision if a new version of a model is better than the champion (the best version so far) or the random policy.

The new version is better if the 95 % confidence interval of the difference of the mean returns is above 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy.special import stdtrit

from flows.report.sentences import between, number, sign

EPISODES = 100  # minimal number of episodes of a complete comparison
LEVEL = 0.975  # quantile of Student's t for a two-sided 95 % interval
SURE = 0.9995  # quantile of Student's t for a two-sided 99.9 % interval
# Episodes before the verdict may be predicted. A policy that fails in 20 % of episodes has no failure in 10 episodes
# with probability 0.8^10 = 1/9, in 20 episodes with 1/87.
FEWEST_SEEN = 20


class GateVerdict(NamedTuple):
    """Verdict of the comparison of a new model with the champion or the random policy.

    Attributes:
        better: True if the new model is better, which means that the lower end of the 95 % interval is above 0.
        difference: mean return of the new model minus mean return of the champion or of the random policy.
        low: lower end of the 95 % interval of the difference.
        high: upper end of the 95 % interval of the difference.
        words: the verdict as a sentence.
        decided: False if the time limit was reached before the verdict was certain.
    """

    better: bool
    difference: float
    low: float
    high: float
    words: str
    decided: bool = True


def against_baseline(candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> GateVerdict:
    """Compare the evaluation of a new model with an evaluation of the random policy.

    Both are mappings with `mean`, `std` and `episodes`. The confidence interval is Welch's, because the two
    evaluations have different seeds and possibly different variances.
    """
    difference = candidate["mean"] - baseline["mean"]
    parts = [side["std"] ** 2 / side["episodes"] for side in (candidate, baseline)]
    terms = [part**2 / (side["episodes"] - 1) for part, side in zip(parts, (candidate, baseline), strict=True) if part]
    freedom = max(1, math.floor(sum(parts) ** 2 / sum(terms))) if terms else 1
    half = float(stdtrit(freedom, LEVEL)) * math.sqrt(sum(parts))
    return _verdict(difference, half, f"the random baseline ({number(baseline['mean'])})", candidate["episodes"])


def is_decided(candidate: Sequence[float], champion: Sequence[float], total: int, random: float | None) -> bool | None:
    """Predict from the first N episodes the verdict that `compare_pairs` will return after `total` episodes.

    The verdict is computed for a pessimistic and for an optimistic assumption about the remaining episodes: their mean
    difference is at the lower or at the upper end of its 99.9 % prediction interval. The prediction is certain if both
    verdicts agree.

    Before each computation, one imagined episode is added to the N episodes. Its difference is the lowest return so far
    (pessimistic) or the highest return so far (optimistic), minus the champion's mean return. The mean return of the
    random policy also counts as a return so far in the pessimistic case. The imagined episode allows for rare outcomes
    that have not occurred yet. It also keeps the variance above zero if the N differences are all equal.

    Args:
        candidate: returns [N] of the new model.
        champion: returns [N] of the champion on the same episodes.
        total: number of episodes of a complete comparison.
        random: mean return of the random policy, if known.

    Returns:
        True if the candidate will be better, False if it will not, None if this is not certain yet.
    """
    seen, count = [*candidate, *champion], len(candidate)
    if count == total:
        return compare_pairs(candidate, champion, "", total).better
    if count < FEWEST_SEEN:
        return None
    differences = [new - old for new, old in zip(candidate, champion, strict=True)]
    middle = statistics.fmean(champion)
    worst = min(seen if random is None else [*seen, random]) - middle
    if _lower_end(differences, worst, -1, total) > 0:
        return True
    return False if _lower_end(differences, max(seen) - middle, 1, total) <= 0 else None


def _lower_end(differences: Sequence[float], imagined: float, side: int, total: int) -> float:
    """Predict the lower end of the 95 % interval of the mean difference after all episodes.

    Args:
        differences: return of the new model minus return of the champion, for each episode that both have played.
        imagined: difference of one more episode, which is added to the data when the variance is estimated.
        side: -1 if the mean difference of the remaining episodes is assumed at the lower end of its prediction
            interval, 1 for the upper end.
        total: number of all episodes.

    Returns:
        The predicted lower end.
    """
    supposed, left = [*differences, imagined], total - len(differences)
    count, spread = len(supposed), statistics.stdev(supposed)
    reach = float(stdtrit(count - 1, SURE)) * spread * math.sqrt(1 / count + 1 / left)
    mean = (math.fsum(differences) + left * (statistics.fmean(supposed) + side * reach)) / total
    return mean - float(stdtrit(total - 1, LEVEL)) * spread / math.sqrt(total)


def compare_pairs(
    candidate: Sequence[float], champion: Sequence[float], champion_name: str, total: int, random: float | None = None
) -> GateVerdict:
    """Compare the returns of a new model and of the champion on the same N episodes.

    Args:
        candidate: returns [N] of the new model.
        champion: returns [N] of the champion.
        champion_name: name of the champion for the sentence.
        total: number of episodes of a complete comparison.
        random: mean return of the random policy, if known.

    Returns:
        The verdict. The new model is better if the 95 % interval of the mean of the N differences is above 0. If N is
        less than `total`, `is_decided` predicts the verdict; if the prediction is uncertain, the verdict is undecided.
    """
    count = len(candidate)
    if count < 2:
        words = f"undecided against {champion_name}: {count} of {total} episodes were played by both"
        return GateVerdict(False, 0.0, -math.inf, math.inf, words, decided=False)
    differences = [new - old for new, old in zip(candidate, champion, strict=True)]
    half = float(stdtrit(count - 1, LEVEL)) * statistics.stdev(differences) / math.sqrt(count)
    other = f"{champion_name} ({number(statistics.fmean(champion))}) on the same new seeds"
    verdict = _verdict(statistics.fmean(differences), half, other, count)
    if count == total:
        return verdict
    known = is_decided(candidate, champion, total, random)
    figures = f"{sign(verdict.difference)}, 95 % interval {between(verdict.low, verdict.high)}"
    if known is None:
        words = f"undecided against {other}: {count} of {total} episodes were played (difference so far {figures})"
    else:
        what = "beats" if known else "does not beat"
        words = (
            f"{what} {other}: difference {figures} over {count} of {total} episodes; stopped early, because the other "
            f"{total - count} could not change this result"
        )
    return verdict._replace(better=bool(known), words=words, decided=known is not None)


def _verdict(difference: float, half: float, other: str, episodes: int) -> GateVerdict:
    low, high = difference - half, difference + half
    better = low > 0
    what = "beats" if better else "does not beat"
    contains = "does not contain" if better or high < 0 else "contains"
    interval = f"95 % interval {between(low, high)} over {episodes} episodes, which {contains} 0"
    return GateVerdict(better, difference, low, high, f"{what} {other}: difference {sign(difference)}, {interval}")
