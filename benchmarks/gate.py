"""Simulated error rates of the champion gate (docs/results/gate.md).

The gate is the test that decides if a new model version replaces the registered champion. It compares returns of both.
The table shows its error rates if it always plays all episodes, and if it stops early, as soon as it predicts that the
remaining episodes cannot change the decision.

python -m benchmarks.gate [comparisons]        # default: 4,000 comparisons per kind of returns; 2 minutes
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.registry.gate import EPISODES, FEWEST_SEEN, compare_pairs, is_decided
from flows.registry.playing import LOOK_EVERY

Returns = NDArray[Any]
Draw = Callable[[np.random.Generator], tuple[Returns, Returns, float]]  # new, champion, the random policy's mean


def normal(gain: float) -> Draw:
    """Return a sampler of normally distributed returns. The new version is better by `gain` standard deviations."""
    return lambda rng: (rng.normal(100 + 30 * gain, 30, EPISODES), rng.normal(100, 30, EPISODES), 0.0)


def at_the_limit(new: float, old: float) -> Draw:
    """Return a sampler of returns like those of CartPole, which are limited to 500.

    In some episodes the policy fails, and the return is drawn uniformly from 150 to 500. In all others it is 500.

    Args:
        new: probability of a failure with the new version.
        old: probability of a failure with the champion.

    Returns:
        The sampler.
    """

    def draw(rng: np.random.Generator, share: float) -> Returns:
        return np.where(rng.random(EPISODES) < share, rng.uniform(150, 500, EPISODES), 500.0)

    return lambda rng: (draw(rng, new), draw(rng, old), 22.0)


def success(new: float, old: float) -> Draw:
    """Return a sampler of returns like those of FrozenLake, which are 1 or 0.

    The probability of 1 is `new` for the new version, and `old` for the champion.
    """
    return lambda rng: (1.0 * (rng.random(EPISODES) < new), 1.0 * (rng.random(EPISODES) < old), 0.0)


def log_normal(gain: float) -> Draw:
    """Return a sampler of log-normally distributed returns. The new version's returns are higher by `gain`."""
    return lambda rng: (rng.lognormal(0, 1, EPISODES) + gain, rng.lognormal(0, 1, EPISODES), 0.0)


def rare_failures(rng: np.random.Generator) -> tuple[Returns, Returns, float]:
    """Draw returns of a new version that is better by 1 in 95 % of the episodes and worse by 19 in 5 %.

    The expected returns of both versions are equal. Student's t interval does not fit such skewed differences, so the
    gate's error rate is higher than with all other distributions in this file.
    """
    return np.where(rng.random(EPISODES) < 0.05, 0.0, 20.0), np.full(EPISODES, 19.0), 0.0


def slow(new: float, old: float) -> Draw:
    """Return a sampler of returns like those of Acrobot: minus the number of steps to the goal, at least -500.

    `new` and `old` are the difficulties for the new version and for the champion; larger values give longer episodes.
    """
    draw: Callable[[np.random.Generator, float], Returns] = lambda rng, mean: np.clip(  # noqa: E731
        -mean - rng.gamma(2, 15, EPISODES), -500, 0
    )
    return lambda rng: (draw(rng, new), draw(rng, old), -499.0)


KINDS: dict[str, tuple[str, Draw]] = {
    "normal, equal": ("no better", normal(0)),
    "at the limit, both fail in 10 % of the episodes": ("no better", at_the_limit(0.1, 0.1)),
    "at the limit, neither fails": ("no better", at_the_limit(0, 0)),
    "success in half of the episodes, both": ("no better", success(0.5, 0.5)),
    "success in 95 %, both": ("no better", success(0.95, 0.95)),
    "log-normal, equal": ("no better", log_normal(0)),
    "rare failures, equal means": ("no better", rare_failures),
    "steps to a goal, equal": ("no better", slow(50, 50)),
    "steps to a goal, 355 more": ("worse", slow(425, 70)),
    "normal, a quarter of a deviation": ("better", normal(0.25)),
    "normal, half a deviation": ("better", normal(0.5)),
    "normal, a deviation": ("better", normal(1)),
    "at the limit, failures in 5 % after 20 %": ("better", at_the_limit(0.05, 0.2)),
    "success in 60 % after 50 %": ("better", success(0.6, 0.5)),
    "success in 80 % after 50 %": ("better", success(0.8, 0.5)),
    "log-normal, half a unit": ("better", log_normal(0.5)),
}


def end_early(new: list[float], old: list[float], random: float) -> tuple[bool, int]:
    """Decide with early stopping if a new model version becomes the champion.

    After every `LOOK_EVERY` episodes, it is tested if the remaining episodes can still change the decision.

    Args:
        new: returns of the new version, one per episode.
        old: returns of the champion, one per episode.
        random: mean return of a random policy.

    Returns:
        (True if the new version becomes the champion, number of episodes played).
    """
    for count in range(FEWEST_SEEN, EPISODES, LOOK_EVERY):
        decision = is_decided(new[:count], old[:count], EPISODES, random)
        if decision is not None:
            return decision, count
    return compare_pairs(new, old, "champion", EPISODES).better, EPISODES


def main(comparisons: int) -> None:
    """Simulate `comparisons` comparisons for each distribution of returns and print the table of error rates."""
    print("| returns | the new version is | champion after all episodes | with early stopping | agree | episodes |")
    print("|---|---|---|---|---|---|")
    for name, (truth, draw) in KINDS.items():
        rng = np.random.default_rng(0)
        fixed, early, same, played = 0, 0, 0, 0
        for _ in range(comparisons):
            new, old, random = draw(rng)
            whole = compare_pairs(new.tolist(), old.tolist(), "champion", EPISODES).better
            decision, count = end_early(new.tolist(), old.tolist(), random)
            fixed, early, same, played = fixed + whole, early + decision, same + (whole == decision), played + count
        shares = " | ".join(f"{100 * n / comparisons:.1f} %" for n in (fixed, early, same))
        print(f"| {name} | {truth} | {shares} | {played / comparisons:.0f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4_000)
