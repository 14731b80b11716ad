"""Whether a winner holds up: the interval of a difference, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flows.sweeps.confirm import interval, judged
from flows.sweeps.trial import iqm


def test_the_interquartile_mean_is_scipys_trimmed_mean() -> None:
    rng = np.random.default_rng(0)
    for count in range(1, 24):
        values = rng.normal(size=count).tolist()
        assert iqm(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_a_clear_difference_is_better_and_its_mirror_is_worse() -> None:
    rng = np.random.default_rng(1)
    low, high = rng.normal(100, 5, 10).tolist(), rng.normal(150, 5, 10).tolist()
    assert judged(high, low)["better"] is True
    assert "beyond the noise" in judged(high, low)["words"]
    worse = judged(low, high)
    assert worse["better"] is False and "worse than" in worse["words"]


def test_noise_is_not_better() -> None:
    """Two samples of one distribution: at most about one in twenty is called better or worse."""
    rng = np.random.default_rng(2)
    said = [judged(rng.normal(100, 20, 10).tolist(), rng.normal(100, 20, 10).tolist()) for _ in range(60)]
    assert sum(one["better"] for one in said) <= 8
    assert sum("within the noise" in one["words"] for one in said) >= 45


def test_fewer_than_ten_seeds_decide_nothing() -> None:
    found = judged([500.0] * 9, [10.0] * 9)
    assert found["better"] is None and "fewer than 10" in found["words"]
    assert judged([500.0] * 10, [10.0] * 10)["better"] is True


def test_seeds_are_drawn_in_pairs() -> None:
    """What both sides share in a seed is no noise of their difference: it cancels exactly here."""
    shared = np.random.default_rng(3).normal(0, 100, 12)
    low, high = interval((shared + 5).tolist(), shared.tolist())
    assert low == pytest.approx(5) and high == pytest.approx(5)
