"""Choice of the champion: decided by differences of returns that exceed their noise, in numbers and in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy.special import stdtrit

from flows.report.sentences import between, number, sign

EPISODES = 100  # fewest that a champion is decided on, unless fewer leave no doubt
LEVEL = 0.975  # of Student's t, for both ends of a 95 % interval
SURE = 0.9995  # for both ends of a 99.9 % interval
FEWEST_SEEN = (
    20  # episodes before anything is foreseen: of ten, one in nine has no failure of a policy that fails in 20 %
)


class GateVerdict(NamedTuple):
    """One comparison, with the 95 % interval of its difference."""

    better: bool  # the whole interval lies above 0
    difference: float  # mean return of the new model minus that of the other, in the environment's unit
    low: float
    high: float
    words: str  # the verdict as a sentence
    decided: bool = True  # False: the time was over before it could be said


def against_baseline(candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> GateVerdict:
    """Compare an evaluation with the random policy's, `mean`, `std` and `episodes` of each.

    Welch's interval: the seeds differ, and so may the spread.
    """
    difference = candidate["mean"] - baseline["mean"]
    parts = [side["std"] ** 2 / side["episodes"] for side in (candidate, baseline)]
    terms = [part**2 / (side["episodes"] - 1) for part, side in zip(parts, (candidate, baseline), strict=True) if part]
    freedom = max(1, math.floor(sum(parts) ** 2 / sum(terms))) if terms else 1
    half = float(stdtrit(freedom, LEVEL)) * math.sqrt(sum(parts))
    return _verdict(difference, half, f"the random baseline ({number(baseline['mean'])})", candidate["episodes"])


def foresee(candidate: Sequence[float], champion: Sequence[float], total: int, random: float | None) -> bool | None:
    """Foresee what `compare_pairs` would say of `total` episodes where the first N leave no doubt; None where they do.

    The rest is taken to go on average as badly, or as well, as the 99.9 % interval of its mean allows, as far as it can
    be told from what was seen; where the verdict is the same both ways, it stands. Beside what was seen there is one
    imagined episode, in which the candidate plays as badly as was seen at all (by the random policy, too), or as well:
    what happens once in many episodes may not have happened yet, and a few equal differences would have no spread.

    Args:
        candidate: returns [N] of the new model.
        champion: returns [N] of the other on the same episodes.
        total: episodes of a whole comparison.
        random: mean return of the random policy, where it is known.

    Returns:
        Whether the candidate is better beyond the noise, or None.
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
    """The lower end of the 95 % interval of all episodes, the mean of the rest being at one end of its own interval."""
    supposed, left = [*differences, imagined], total - len(differences)
    count, spread = len(supposed), statistics.stdev(supposed)
    reach = float(stdtrit(count - 1, SURE)) * spread * math.sqrt(1 / count + 1 / left)
    mean = (math.fsum(differences) + left * (statistics.fmean(supposed) + side * reach)) / total
    return mean - float(stdtrit(total - 1, LEVEL)) * spread / math.sqrt(total)


def compare_pairs(
    candidate: Sequence[float], champion: Sequence[float], champion_name: str, total: int, random: float | None = None
) -> GateVerdict:
    """Compare returns on the same episodes, [N] each: the interval is of the mean of the pairs' differences.

    Where N is below `total` the verdict is what can be foreseen; where that is nothing it is not decided.
    """
    count = len(candidate)
    if count < 2:
        words = f"not decided against {champion_name}: {count} of {total} episodes were played on both sides"
        return GateVerdict(False, 0.0, -math.inf, math.inf, words, decided=False)
    differences = [new - old for new, old in zip(candidate, champion, strict=True)]
    half = float(stdtrit(count - 1, LEVEL)) * statistics.stdev(differences) / math.sqrt(count)
    other = f"{champion_name} ({number(statistics.fmean(champion))}) on the same fresh seeds"
    found = _verdict(statistics.fmean(differences), half, other, count)
    if count == total:
        return found
    known = foresee(candidate, champion, total, random)
    figures = f"{sign(found.difference)}, 95 % interval {between(found.low, found.high)}"
    if known is None:
        words = f"not decided against {other}: {count} of {total} episodes were played (difference so far {figures})"
    else:
        what, more = "beats" if known else "does not beat", f"{total - count} more would not change that"
        words = f"{what} {other}: difference {figures} over {count} of {total} episodes; {more}"
    return found._replace(better=bool(known), words=words, decided=known is not None)


def _verdict(difference: float, half: float, other: str, episodes: int) -> GateVerdict:
    low, high = difference - half, difference + half
    better = low > 0
    what = "beats" if better else "does not beat"
    beyond = "beyond" if better or high < 0 else "within"
    interval = f"95 % interval {between(low, high)} over {episodes} episodes, {beyond} the noise"
    return GateVerdict(better, difference, low, high, f"{what} {other}: difference {sign(difference)}, {interval}")
