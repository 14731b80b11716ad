"""Statistics of comparisons against SciPy, closed forms, a published table and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from flows.compare import statistics

SEED = 20260101


def rng() -> np.random.Generator:
    return np.random.default_rng(SEED)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 10, 11, 23])
def test_iqm_matches_scipy_trimmed_mean(count: int) -> None:
    scores = rng().normal(size=count)
    assert statistics.iqm([scores]) == pytest.approx(scipy.stats.trim_mean(scores, 0.25))


def test_iqm_pools_runs_of_all_environments() -> None:
    scores = [rng().normal(size=7), 3 + rng().normal(size=5)]
    assert statistics.iqm(scores) == pytest.approx(scipy.stats.trim_mean(np.concatenate(scores), 0.25))


def test_iqm_ignores_outlier() -> None:
    scores = np.arange(8.0)  # 0 … 7: the middle half is 2, 3, 4, 5
    with_outlier = np.append(scores[:-1], 1e6)
    assert statistics.iqm([scores]) == statistics.iqm([with_outlier]) == 3.5
    assert statistics.mean([with_outlier]) > 1e5


def test_mean_and_median_weight_environments_equally() -> None:
    # Means over seeds are 1, 4, 10: mean 5 and median 4 over environments. Pooled runs would give 3 and 2.
    scores = [np.array([0.0, 2.0, 1.0, 1.0]), np.array([4.0, 4.0]), np.array([10.0])]
    assert statistics.mean(scores) == 5.0
    assert statistics.median(scores) == 4.0
    assert statistics.median([np.array([1.0, 2.0, 30.0])]) == 2.0  # median over seeds for one environment


def test_optimality_gap_ignores_scores_above_target() -> None:
    assert statistics.optimality_gap([np.array([0.5, 3.0]), np.array([1.0, 0.0])]) == pytest.approx((0.25 + 0.5) / 2)
    below = rng().uniform(size=9)
    # All scores are below the target.
    assert statistics.optimality_gap([below]) == pytest.approx(1 - below.mean())


def test_share_above_matches_empirical_survival_function() -> None:
    scores, levels = rng().normal(size=40), np.linspace(-3, 3, 13)
    expected = scipy.stats.ecdf(scores).sf.evaluate(levels)
    assert statistics.share_above(levels)([scores]) == pytest.approx(expected)


def test_share_above_integrates_to_mean() -> None:
    # The integral of P(X > t) over t from 0 is E[X] for X >= 0.
    scores, levels = [rng().uniform(size=6), rng().uniform(size=17)], np.linspace(0, 1, 20_001)
    profile = statistics.share_above(levels)(scores)
    assert np.trapezoid(profile, levels) == pytest.approx(statistics.mean(scores), abs=1e-4)


def test_improvement_matches_scipy_mannwhitneyu() -> None:
    first, second = rng().integers(0, 6, 12).astype(float), rng().integers(2, 8, 9).astype(float)  # with ties
    u = scipy.stats.mannwhitneyu(first, second).statistic
    assert statistics.improvement([first], [second], rng(), False).value == pytest.approx(u / (12 * 9))


def test_improvement_matches_published_example() -> None:
    # Of six tortoises and six hares, the first tortoise beats all hares and the other five beat one each:
    # U = 11 of 36 pairs (en.wikipedia.org/wiki/Mann–Whitney_U_test, "Illustrative example").
    order = "THHHHHTTTTTH"
    positions = {animal: np.array([-i for i, who in enumerate(order) if who == animal], float) for animal in "TH"}
    assert statistics.improvement([positions["T"]], [positions["H"]], rng(), False).value == pytest.approx(11 / 36)
    assert statistics.improvement([positions["H"]], [positions["T"]], rng(), False).value == pytest.approx(25 / 36)


def test_improvement_of_normal_scores_matches_closed_form() -> None:
    # P(X > Y) = Φ((μ₁ - μ₂) / sqrt(σ₁² + σ₂²)).
    first, second = rng().normal(1.0, 1.0, 2000), np.random.default_rng(1).normal(0.0, 2.0, 2000)
    found = statistics.improvement([first], [second], rng(), False, replicates=2).value
    assert found == pytest.approx(scipy.stats.norm.cdf(1 / np.sqrt(5)), abs=0.02)


def test_bootstrap_matches_scipy_percentile_bootstrap() -> None:
    scores = rng().gamma(2.0, size=15)
    interval = statistics.bootstrap([scores], statistics.mean, rng(), replicates=40_000)
    expected = scipy.stats.bootstrap(
        (scores,), np.mean, n_resamples=40_000, method="percentile", vectorized=True, rng=rng()
    ).confidence_interval
    assert [interval.low, interval.high] == pytest.approx(list(expected), abs=0.02 * scores.std())
    first, second = scores, rng().gamma(3.0, size=11)
    interval = statistics.improvement([first], [second], rng(), False, replicates=20_000)
    expected = scipy.stats.bootstrap(
        (first, second),
        lambda a, b: scipy.stats.mannwhitneyu(a, b).statistic / (15 * 11),
        n_resamples=1_000,
        method="percentile",
        vectorized=False,
        rng=rng(),
    ).confidence_interval
    assert [interval.low, interval.high] == pytest.approx(list(expected), abs=0.03)


def test_bootstrap_of_mean_matches_closed_form() -> None:
    # The bootstrap variance of a mean is the variance of the sample divided by N. Strata are independent.
    scores = [rng().normal(size=30), 100 + rng().normal(scale=3, size=20)]
    expected = np.sqrt(sum(one.var() / len(one) for one in scores)) / 2
    found = statistics.bootstrap(scores, statistics.mean, rng(), replicates=40_000)
    width = scipy.stats.norm.ppf(0.975) * expected
    assert (found.high - found.low) / 2 == pytest.approx(width, rel=0.03)  # without strata it would be 30 times as wide


def test_bootstrap_band_matches_pointwise_intervals() -> None:
    curve = rng().normal(size=(4, 12))  # [P, N]
    band = statistics.bootstrap([curve], statistics.iqm, rng())
    for place in range(4):
        alone = statistics.bootstrap([curve[place]], statistics.iqm, rng())
        assert (band.value[place], band.low[place], band.high[place]) == pytest.approx(tuple(alone))


def test_paired_difference_removes_common_noise() -> None:
    common, noise = rng().normal(scale=10, size=12), np.random.default_rng(2).normal(scale=0.1, size=12)
    first, second = [common + 1 + noise], [common]
    unpaired = statistics.difference(first, second, statistics.mean, rng(), paired=False)
    paired = statistics.difference(first, second, statistics.mean, rng(), paired=True)
    assert unpaired.value == paired.value == pytest.approx(1, abs=0.2)
    assert unpaired.low < 0 < unpaired.high
    assert 0.8 < paired.low < paired.high < 1.2
    assert statistics.correlation(first, second) > 0.99
    assert statistics.correlation([np.ones(5)], [np.arange(5.0)]) == 0.0  # not NaN


def coverage(draw, truth: float, aggregate, count: int, studies: int = 400) -> float:
    """Return the share of simulated studies with `count` seeds whose 95 % interval contains the truth."""
    generator, hits = rng(), 0
    for _ in range(studies):
        found = statistics.bootstrap([draw(generator, count)], aggregate, generator, replicates=600)
        hits += bool(found.low <= truth <= found.high)
    return hits / studies


@pytest.mark.parametrize(
    ("count", "aggregate", "low", "high"),
    # The share in 400 studies is within ±0.03 of its expectation with probability 95 %.
    [(3, statistics.mean, 0.60, 0.80), (10, statistics.iqm, 0.88, 0.97), (20, statistics.iqm, 0.90, 0.98)],
)
def test_bootstrap_coverage_by_number_of_seeds(count, aggregate, low, high) -> None:
    assert low < coverage(lambda generator, n: generator.normal(size=n), 0.0, aggregate, count) < high


def test_bootstrap_covers_skewed_scores_with_10_seeds() -> None:
    draws = np.random.default_rng(3).lognormal(size=1_000_000)
    truth = scipy.stats.trim_mean(draws, 0.25)
    assert 0.88 < coverage(lambda generator, n: generator.lognormal(size=n), truth, statistics.iqm, 10) < 0.98
