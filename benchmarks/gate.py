"""Error rates of the champion's gate, ended early and with all of its episodes: simulated, for docs/results/gate.md.

python -m benchmarks.gate [comparisons]        # 4,000 of each kind, two minutes
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
    """Returns of a standard deviation of 30."""
    return lambda rng: (rng.normal(100 + 30 * gain, 30, EPISODES), rng.normal(100, 30, EPISODES), 0.0)


def at_the_limit(new: float, old: float) -> Draw:
    """500, but for a share of episodes that end anywhere above 150, as on CartPole."""

    def draw(rng: np.random.Generator, share: float) -> Returns:
        return np.where(rng.random(EPISODES) < share, rng.uniform(150, 500, EPISODES), 500.0)

    return lambda rng: (draw(rng, new), draw(rng, old), 22.0)


def success(new: float, old: float) -> Draw:
    """1 with this probability, else 0, as on FrozenLake."""
    return lambda rng: (1.0 * (rng.random(EPISODES) < new), 1.0 * (rng.random(EPISODES) < old), 0.0)


def log_normal(gain: float) -> Draw:
    """Log-normal returns."""
    return lambda rng: (rng.lognormal(0, 1, EPISODES) + gain, rng.lognormal(0, 1, EPISODES), 0.0)


def rare_failures(rng: np.random.Generator) -> tuple[Returns, Returns, float]:
    """Better by 1 in 19 of 20 episodes, worse by 19 in the others: equal means, and the interval's own worst case."""
    return np.where(rng.random(EPISODES) < 0.05, 0.0, 20.0), np.full(EPISODES, 19.0), 0.0


def slow(new: float, old: float) -> Draw:
    """Minus the steps to the goal, as on Acrobot."""
    draw: Callable[[np.random.Generator, float], Returns] = lambda rng, mean: np.clip(  # noqa: E731
        -mean - rng.gamma(2, 15, EPISODES), -500, 0
    )
    return lambda rng: (draw(rng, new), draw(rng, old), -499.0)


KINDS: dict[str, tuple[str, Draw]] = {
    "normal, equal": ("no better", normal(0)),
    "at the limit, both fail in 10 %": ("no better", at_the_limit(0.1, 0.1)),
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
    """The verdict of a gate that looks every so many episodes, and after how many it ends."""
    for count in range(FEWEST_SEEN, EPISODES, LOOK_EVERY):
        found = is_decided(new[:count], old[:count], EPISODES, random)
        if found is not None:
            return found, count
    return compare_pairs(new, old, "champion", EPISODES).better, EPISODES


def main(comparisons: int) -> None:
    """Print the table."""
    print("| returns | the new version is | crowned by all episodes | ended early | agree | episodes |")
    print("|---|---|---|---|---|---|")
    for name, (truth, draw) in KINDS.items():
        rng = np.random.default_rng(0)
        fixed, early, same, played = 0, 0, 0, 0
        for _ in range(comparisons):
            new, old, random = draw(rng)
            whole = compare_pairs(new.tolist(), old.tolist(), "champion", EPISODES).better
            found, count = end_early(new.tolist(), old.tolist(), random)
            fixed, early, same, played = fixed + whole, early + found, same + (whole == found), played + count
        shares = " | ".join(f"{100 * n / comparisons:.1f} %" for n in (fixed, early, same))
        print(f"| {name} | {truth} | {shares} | {played / comparisons:.0f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4_000)
