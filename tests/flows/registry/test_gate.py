"""Champion decisions, compared with values from tables of Student's t, without SciPy."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from flows.registry.gate import against_baseline, compare_pairs, is_decided


def test_compare_pairs_interval_matches_student_t_table() -> None:
    # Differences 1, 2, 3, 4, 5: mean 3, std sqrt(2.5); t(0.975, 4) = 2.776 from the table.
    verdict = compare_pairs([11.0, 22.0, 33.0, 44.0, 55.0], [10.0, 20.0, 30.0, 40.0, 50.0], "champion version 1", 5)
    half = 2.776 * math.sqrt(2.5) / math.sqrt(5)
    assert verdict.difference == pytest.approx(3.0)
    assert verdict.low == pytest.approx(3 - half, abs=2e-2)
    assert verdict.high == pytest.approx(3 + half, abs=2e-2)
    assert verdict.better


def test_compare_pairs_detects_gain_hidden_in_unpaired_samples() -> None:
    champion = [float(100 * i) for i in range(100)]
    challenger = [value + 1 + (i % 2) / 2 for i, value in enumerate(champion)]
    spread = 1.96 * math.sqrt(2 * statistics.variance(champion) / 100)
    assert statistics.fmean(challenger) - statistics.fmean(champion) < spread
    assert compare_pairs(challenger, champion, "champion", 100).better


def test_compare_pairs_rejects_equal_returns() -> None:
    verdict = compare_pairs([500.0] * 100, [500.0] * 100, "champion version 3", 100)
    assert not verdict.better
    assert "does not beat champion version 3" in verdict.words


def test_compare_pairs_rejects_gain_within_noise() -> None:
    champion = [float(i % 10) for i in range(100)]
    challenger = [float((i * 7 + 3) % 10) + 0.1 for i in range(100)]
    verdict = compare_pairs(challenger, champion, "champion", 100)
    assert verdict.difference > 0
    assert not verdict.better


def test_against_baseline_requires_gain_beyond_noise() -> None:
    # Standard error sqrt(25/100 + 11**2/100) = 1.2083; t(0.975, about 138) = 1.977: half-width 2.389.
    baseline = {"mean": 22.0, "std": 11.0, "episodes": 100}
    near = against_baseline({"mean": 24.3, "std": 5.0, "episodes": 100}, baseline)
    far = against_baseline({"mean": 24.5, "std": 5.0, "episodes": 100}, baseline)
    assert (near.better, far.better) == (False, True)
    assert far.high - far.difference == pytest.approx(2.389, abs=5e-3)


def test_against_baseline_accepts_zero_variance() -> None:
    constant = {"mean": -200.0, "std": 0.0, "episodes": 100}
    assert not against_baseline(constant, constant).better
    assert against_baseline(constant | {"mean": -199.0}, constant).better


WHOLE = 100


def sequential(new: list[float], old: list[float], random: float) -> tuple[bool, int]:
    """Return the verdict of a comparison that is checked every ten episodes, and the number of episodes."""
    for count in range(10, WHOLE + 1, 10):
        if (decided := is_decided(new[:count], old[:count], WHOLE, random)) is not None:
            return decided, count
    raise AssertionError("all episodes decide")


def normal(rng: np.random.Generator, gain: float) -> tuple[list[float], list[float], float]:
    return rng.normal(100 + gain, 30, WHOLE).tolist(), rng.normal(100, 30, WHOLE).tolist(), 0.0


def failing(rng: np.random.Generator, share: float) -> tuple[list[float], list[float], float]:
    """Draw returns at CartPole's limit except for a share of failures; the champion fails in 20 of 100."""
    draw = lambda often: np.where(rng.random(WHOLE) < often, rng.uniform(150, 500, WHOLE), 500.0).tolist()  # noqa: E731
    return draw(share), draw(0.2), 22.0


def rare(rng: np.random.Generator, loss: float) -> tuple[list[float], list[float], float]:
    """Draw returns better by 1 in 19 of 20 episodes and random in the others, with an equal mean."""
    return np.where(rng.random(WHOLE) < 0.05, 19.0 - loss, 20.0).tolist(), [19.0] * WHOLE, 0.0


@pytest.mark.parametrize(
    ("draw", "difference"),
    [(normal, 0.0), (normal, 15.0), (failing, 0.2), (failing, 0.03), (rare, 19.0)],
    ids=["equal", "half a deviation", "equal at the limit", "fewer failures", "rare failures"],
)
def test_is_decided_has_error_rate_of_full_comparison(draw, difference: float) -> None:
    rng, count = np.random.default_rng(7), 150
    whole, early, same, played = 0, 0, 0, 0
    for _ in range(count):
        new, old, random = draw(rng, difference)
        fixed, (decided, after) = compare_pairs(new, old, "champion", WHOLE).better, sequential(new, old, random)
        whole, early, same, played = whole + fixed, early + decided, same + (fixed == decided), played + after
    assert same / count > 0.98
    assert abs(early - whole) / count < 0.02
    assert played / count < 97


def test_is_decided_requires_twenty_conclusive_episodes() -> None:
    noise = [0.0, 1.0, -1.0, 2.0, -2.0] * 4
    bad, good = [-455.0 + n for n in noise], [-90.0 - n for n in noise]
    assert is_decided(bad, good, 100, -500.0) is False
    assert is_decided(good, bad, 100, -500.0) is True
    assert is_decided(bad[:19], good[:19], 100, -500.0) is None
    assert is_decided([500.0] * 20, [500.0] * 20, 100, 22.0) is False  # no return can exceed the limit
    # Better by 1 in all 20 episodes: an event with a frequency of 1 in 20 may not have occurred yet.
    assert is_decided([20.0] * 20, [19.0] * 20, 100, 0.0) is None


def test_compare_pairs_is_undecided_with_missing_episodes() -> None:
    new, old = [100.0, 130.0, 90.0] * 4, [90.0, 120.0, 95.0] * 4
    short = compare_pairs(new, old, "champion version 1", 100)
    assert not short.better and not short.decided
    assert short.words.startswith("undecided against champion version 1 (101.7) on the same new seeds: ")
    assert "12 of 100 episodes were played (difference so far +5.00, 95 % interval [" in short.words
    none = compare_pairs([], [], "champion version 1", 100)
    assert (none.better, none.decided) == (False, False)
    assert none.words == "undecided against champion version 1: 0 of 100 episodes were played by both"
