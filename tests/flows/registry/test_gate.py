"""Champion decisions against numbers worked out with SciPy-independent tables of Student's t."""

from __future__ import annotations

import math
import statistics

import pytest

from flows.registry.gate import against_baseline, paired


def test_paired_interval_is_that_of_the_differences() -> None:
    # Differences 1, 2, 3, 4, 5: mean 3, std sqrt(2.5); t(0.975, 4) = 2.776 from the table.
    verdict = paired([11.0, 22.0, 33.0, 44.0, 55.0], [10.0, 20.0, 30.0, 40.0, 50.0], "champion version 1")
    half = 2.776 * math.sqrt(2.5) / math.sqrt(5)
    assert verdict.difference == pytest.approx(3.0)
    assert verdict.low == pytest.approx(3 - half, abs=2e-2)
    assert verdict.high == pytest.approx(3 + half, abs=2e-2)
    assert verdict.better


def test_pairs_tell_apart_what_unpaired_samples_cannot() -> None:
    champion = [float(100 * i) for i in range(100)]
    challenger = [value + 1 + (i % 2) / 2 for i, value in enumerate(champion)]
    spread = 1.96 * math.sqrt(2 * statistics.variance(champion) / 100)
    assert statistics.fmean(challenger) - statistics.fmean(champion) < spread
    assert paired(challenger, champion, "champion").better


def test_equal_returns_do_not_promote() -> None:
    verdict = paired([500.0] * 100, [500.0] * 100, "champion version 3")
    assert not verdict.better
    assert "does not beat champion version 3" in verdict.words


def test_a_gain_within_the_noise_does_not_promote() -> None:
    champion = [float(i % 10) for i in range(100)]
    challenger = [float((i * 7 + 3) % 10) + 0.1 for i in range(100)]
    verdict = paired(challenger, champion, "champion")
    assert verdict.difference > 0
    assert not verdict.better


def test_baseline_is_beaten_beyond_the_noise_only() -> None:
    # Standard error sqrt(25/100 + 11**2/100) = 1.2083; t(0.975, about 138) = 1.977: half-width 2.389.
    baseline = {"mean": 22.0, "std": 11.0, "episodes": 100}
    near = against_baseline({"mean": 24.3, "std": 5.0, "episodes": 100}, baseline)
    far = against_baseline({"mean": 24.5, "std": 5.0, "episodes": 100}, baseline)
    assert (near.better, far.better) == (False, True)
    assert far.high - far.difference == pytest.approx(2.389, abs=5e-3)


def test_two_constant_policies_are_compared_without_dividing_by_zero() -> None:
    constant = {"mean": -200.0, "std": 0.0, "episodes": 100}
    assert not against_baseline(constant, constant).better
    assert against_baseline(constant | {"mean": -199.0}, constant).better
