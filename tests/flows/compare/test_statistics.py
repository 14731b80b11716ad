"""The statistics of a comparison against SciPy's, closed forms, published tables, and by simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from flows.compare import statistics

SEED = 20260101


def rng() -> np.random.Generator:
    return np.random.default_rng(SEED)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 10, 11, 23])
def test_iqm_is_scipys_trimmed_mean(count: int) -> None:
    scores = rng().normal(size=count)
    assert statistics.iqm([scores]) == pytest.approx(scipy.stats.trim_mean(scores, 0.25))


def test_iqm_pools_the_runs_of_all_environments() -> None:
    scores = [rng().normal(size=7), 3 + rng().normal(size=5)]
    assert statistics.iqm(scores) == pytest.approx(scipy.stats.trim_mean(np.concatenate(scores), 0.25))


def test_an_outlier_moves_the_mean_and_not_the_iqm() -> None:
    scores = np.arange(8.0)  # 0 … 7: the middle half is 2, 3, 4, 5
    spoilt = np.append(scores[:-1], 1e6)
    assert statistics.iqm([scores]) == statistics.iqm([spoilt]) == 3.5
    assert statistics.mean([spoilt]) > 1e5


def test_mean_and_median_weigh_environments_not_runs() -> None:
    # Means over seeds: 1, 4, 10; over environments their mean is 5, their median 4. All seven runs would give 3 and 2.
    scores = [np.array([0.0, 2.0, 1.0, 1.0]), np.array([4.0, 4.0]), np.array([10.0])]
    assert statistics.mean(scores) == 5.0
    assert statistics.median(scores) == 4.0
    assert statistics.median([np.array([1.0, 2.0, 30.0])]) == 2.0  # one environment: over seeds


def test_optimality_gap_does_not_count_what_is_above_the_target() -> None:
    assert statistics.optimality_gap([np.array([0.5, 3.0]), np.array([1.0, 0.0])]) == pytest.approx((0.25 + 0.5) / 2)
    below = rng().uniform(size=9)
    assert statistics.optimality_gap([below]) == pytest.approx(1 - below.mean())  # nothing above: 1 - mean


def test_profile_is_the_empirical_survival_function() -> None:
    scores, levels = rng().normal(size=40), np.linspace(-3, 3, 13)
    expected = scipy.stats.ecdf(scores).sf.evaluate(levels)
    assert statistics.share_above(levels)([scores]) == pytest.approx(expected)


def test_a_profile_integrates_to_the_mean_and_two_environments_count_alike() -> None:
    # The integral of P(X > t) over t from 0 is E[X] for X >= 0.
    scores, levels = [rng().uniform(size=6), rng().uniform(size=17)], np.linspace(0, 1, 20_001)
    profile = statistics.share_above(levels)(scores)
    assert np.trapezoid(profile, levels) == pytest.approx(statistics.mean(scores), abs=1e-4)


def test_probability_of_improvement_is_scipys_u_over_all_pairs() -> None:
    first, second = rng().integers(0, 6, 12).astype(float), rng().integers(2, 8, 9).astype(float)  # with ties
    u = scipy.stats.mannwhitneyu(first, second).statistic
    assert statistics.improvement([first], [second], rng(), False).value == pytest.approx(u / (12 * 9))


def test_probability_of_improvement_of_a_published_table() -> None:
    # Of six tortoises and six hares the first tortoise beats all hares and the other five one each: U = 11 of 36 pairs
    # (en.wikipedia.org/wiki/Mann–Whitney_U_test, "Illustrative example").
    order = "THHHHHTTTTTH"
    place = {animal: np.array([-i for i, who in enumerate(order) if who == animal], float) for animal in "TH"}
    assert statistics.improvement([place["T"]], [place["H"]], rng(), False).value == pytest.approx(11 / 36)
    assert statistics.improvement([place["H"]], [place["T"]], rng(), False).value == pytest.approx(25 / 36)


def test_probability_of_improvement_has_its_closed_form_for_normal_scores() -> None:
    # P(X > Y) = Φ((μ₁ - μ₂) / sqrt(σ₁² + σ₂²)).
    first, second = rng().normal(1.0, 1.0, 2000), np.random.default_rng(1).normal(0.0, 2.0, 2000)
    found = statistics.improvement([first], [second], rng(), False, replicates=2).value
    assert found == pytest.approx(scipy.stats.norm.cdf(1 / np.sqrt(5)), abs=0.02)


def test_intervals_are_those_of_scipys_percentile_bootstrap() -> None:
    scores = rng().gamma(2.0, size=15)
    ours = statistics.bootstrap([scores], statistics.mean, rng(), replicates=40_000)
    theirs = scipy.stats.bootstrap(
        (scores,), np.mean, n_resamples=40_000, method="percentile", vectorized=True, rng=rng()
    ).confidence_interval
    assert [ours.low, ours.high] == pytest.approx(list(theirs), abs=0.02 * scores.std())
    first, second = scores, rng().gamma(3.0, size=11)
    ours = statistics.improvement([first], [second], rng(), False, replicates=20_000)
    theirs = scipy.stats.bootstrap(
        (first, second),
        lambda a, b: scipy.stats.mannwhitneyu(a, b).statistic / (15 * 11),
        n_resamples=1_000,
        method="percentile",
        vectorized=False,
        rng=rng(),
    ).confidence_interval
    assert [ours.low, ours.high] == pytest.approx(list(theirs), abs=0.03)


def test_a_mean_has_the_bootstrap_spread_of_theory() -> None:
    # The bootstrap variance of a mean is that of the sample (over N) over N; strata are independent of each other.
    scores = [rng().normal(size=30), 100 + rng().normal(scale=3, size=20)]
    expected = np.sqrt(sum(one.var() / len(one) for one in scores)) / 2
    found = statistics.bootstrap(scores, statistics.mean, rng(), replicates=40_000)
    width = scipy.stats.norm.ppf(0.975) * expected
    assert (found.high - found.low) / 2 == pytest.approx(width, rel=0.03)  # unstratified it would be 30 times as wide


def test_bands_are_the_intervals_of_every_place() -> None:
    curve = rng().normal(size=(4, 12))  # [P, N]
    band = statistics.bootstrap([curve], statistics.iqm, rng())
    for place in range(4):
        alone = statistics.bootstrap([curve[place]], statistics.iqm, rng())
        assert (band.value[place], band.low[place], band.high[place]) == pytest.approx(tuple(alone))


def test_pairs_with_common_luck_make_a_narrow_difference() -> None:
    luck, noise = rng().normal(scale=10, size=12), np.random.default_rng(2).normal(scale=0.1, size=12)
    first, second = [luck + 1 + noise], [luck]
    apart = statistics.difference(first, second, statistics.mean, rng(), paired=False)
    together = statistics.difference(first, second, statistics.mean, rng(), paired=True)
    assert apart.value == together.value == pytest.approx(1, abs=0.2)
    assert apart.low < 0 < apart.high
    assert 0.8 < together.low < together.high < 1.2
    assert statistics.correlation(first, second) > 0.99
    assert statistics.correlation([np.ones(5)], [np.arange(5.0)]) == 0.0  # not NaN


def coverage(draw, truth: float, aggregate, count: int, studies: int = 400) -> float:
    """In how many of so many simulated studies of `count` seeds the 95 % interval holds the truth."""
    chance, hits = rng(), 0
    for _ in range(studies):
        found = statistics.bootstrap([draw(chance, count)], aggregate, chance, replicates=600)
        hits += bool(found.low <= truth <= found.high)
    return hits / studies


@pytest.mark.parametrize(
    ("count", "aggregate", "low", "high"),
    # A binomial share of 400 studies is within ±0.03 of its expectation in 95 % of all cases.
    [(3, statistics.mean, 0.60, 0.80), (10, statistics.iqm, 0.88, 0.97), (20, statistics.iqm, 0.90, 0.98)],
)
def test_intervals_cover_the_truth_as_often_as_ten_seeds_allow_and_three_do_not(count, aggregate, low, high) -> None:
    assert low < coverage(lambda chance, n: chance.normal(size=n), 0.0, aggregate, count) < high


def test_skewed_scores_are_covered_at_ten_seeds() -> None:
    draws = np.random.default_rng(3).lognormal(size=1_000_000)
    truth = scipy.stats.trim_mean(draws, 0.25)
    assert 0.88 < coverage(lambda chance, n: chance.lognormal(size=n), truth, statistics.iqm, 10) < 0.98
