"""Simulated error rates of the champion gate, with early stopping and with all episodes (docs/results/gate.md).

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
    """Return a sampler of normal returns with a standard deviation of 30."""
    return lambda rng: (rng.normal(100 + 30 * gain, 30, EPISODES), rng.normal(100, 30, EPISODES), 0.0)


def at_the_limit(new: float, old: float) -> Draw:
    """Return a sampler as on CartPole: 500, except for a share of episodes that end uniformly above 150."""

    def draw(rng: np.random.Generator, share: float) -> Returns:
        return np.where(rng.random(EPISODES) < share, rng.uniform(150, 500, EPISODES), 500.0)

    return lambda rng: (draw(rng, new), draw(rng, old), 22.0)


def success(new: float, old: float) -> Draw:
    """Return a sampler as on FrozenLake: 1 with the given probability, else 0."""
    return lambda rng: (1.0 * (rng.random(EPISODES) < new), 1.0 * (rng.random(EPISODES) < old), 0.0)


def log_normal(gain: float) -> Draw:
    """Return a sampler of log-normal returns."""
    return lambda rng: (rng.lognormal(0, 1, EPISODES) + gain, rng.lognormal(0, 1, EPISODES), 0.0)


def rare_failures(rng: np.random.Generator) -> tuple[Returns, Returns, float]:
    """Draw returns that are better by 1 in 19 of 20 episodes and worse by 19 in the others.

    The means are equal. This is the worst case of the interval.
    """
    return np.where(rng.random(EPISODES) < 0.05, 0.0, 20.0), np.full(EPISODES, 19.0), 0.0


def slow(new: float, old: float) -> Draw:
    """Return a sampler as on Acrobot: minus the number of steps to the goal."""
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
    """Return the decision of a gate that tests every `LOOK_EVERY` episodes, and the number of episodes played."""
    for count in range(FEWEST_SEEN, EPISODES, LOOK_EVERY):
        decision = is_decided(new[:count], old[:count], EPISODES, random)
        if decision is not None:
            return decision, count
    return compare_pairs(new, old, "champion", EPISODES).better, EPISODES


def main(comparisons: int) -> None:
    """Print the table."""
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
