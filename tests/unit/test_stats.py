"""Verdicts are what they claim: against scipy's tests on fixed cases, and by simulation from known truth."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from mpt.stats.equivalence import BETTER, EQUIVALENT, INCONCLUSIVE, WORSE, interval_of, paired, power, seeds_needed
from mpt.stats.ratio import ratio_of

DIFFERENCES = [0.12, -0.31, 0.05, 0.22, -0.08]


def tost(values: list[float], margin: float) -> float:
    """p of the two one-sided tests, by scipy."""
    low = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    high = stats.ttest_1samp(values, margin, alternative="less").pvalue
    return float(max(low, high))


@pytest.mark.parametrize("margin", [0.15, 0.3, 0.5])
def test_equivalence_has_scipys_p_value(margin: float) -> None:
    made = paired(DIFFERENCES, margin)
    assert made.p == pytest.approx(tost(DIFFERENCES, margin), rel=1e-9)
    assert (made.word == EQUIVALENT) == (tost(DIFFERENCES, margin) < 0.05)


def test_the_interval_is_scipys() -> None:
    made = interval_of(DIFFERENCES)
    mean, sem = np.mean(DIFFERENCES), stats.sem(DIFFERENCES)
    low, high = stats.t.interval(0.9, len(DIFFERENCES) - 1, loc=mean, scale=sem)
    assert (made.low, made.high) == pytest.approx((low, high), rel=1e-9)


def test_statsmodels_agrees_on_paired_equivalence() -> None:
    weightstats = pytest.importorskip("statsmodels.stats.weightstats", reason="statsmodels is not installed")
    base = np.array([93.1, 94.0, 92.7, 93.5, 93.3])
    p, _, _ = weightstats.ttost_paired(base + DIFFERENCES, base, -0.3, 0.3)
    assert paired(DIFFERENCES, 0.3).p == pytest.approx(p, rel=1e-6)


def test_worse_and_better_have_the_one_sided_p_value() -> None:
    values = [-0.9, -1.1, -1.0, -1.2]
    made = paired(values, 0.5)
    assert made.word == WORSE
    assert made.p == pytest.approx(stats.ttest_1samp(values, -0.5, alternative="less").pvalue, rel=1e-9)
    assert paired([-v for v in values], 0.5).word == BETTER


@pytest.mark.parametrize("n", [2, 3, 5, 10])
@pytest.mark.parametrize(("truth", "word"), [(1.0, EQUIVALENT), (-1.0, EQUIVALENT), (-1.0, WORSE), (1.0, BETTER)])
def test_at_the_margin_a_wrong_word_is_said_in_at_most_five_percent_of_10_000_simulations(
    n: int, truth: float, word: str
) -> None:
    drawn = np.random.default_rng(n).normal(truth, 1.3, size=(10_000, n))
    said = Counter(paired(list(row), 1.0).word for row in drawn)
    # 0.05 and four standard errors of a share in 10,000 simulations
    assert said[word] / 10_000 <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 10_000)


def test_the_one_sided_rate_is_not_only_bounded_but_met() -> None:
    drawn = np.random.default_rng(0).normal(-1.0, 0.5, size=(10_000, 5))
    share = sum(paired(list(row), 1.0).word == WORSE for row in drawn) / 10_000
    assert share == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 10_000))


@pytest.mark.parametrize(("mean", "sd", "word"), [(0.2, 0.6, EQUIVALENT), (-1.6, 0.9, WORSE)])
def test_the_seeds_that_are_asked_for_suffice_in_the_promised_share_of_simulations(
    mean: float, sd: float, word: str
) -> None:
    n = seeds_needed(mean, sd, 1.0)
    assert n is not None
    assert power(n - 1, mean, sd, 1.0) < 0.8
    drawn = np.random.default_rng(1).normal(mean, sd, size=(10_000, n))
    share = sum(paired(list(row), 1.0).word == word for row in drawn) / 10_000
    assert share >= 0.8 - 4 * math.sqrt(0.8 * 0.2 / 10_000)
    assert share <= 0.92


def test_one_pair_says_nothing_and_asks_for_more() -> None:
    made = paired([0.0], 0.5)
    assert made.word == INCONCLUSIVE
    assert math.isnan(made.interval.sd)
    assert made.more_seeds == 1
    assert paired([], 0.5).more_seeds == 2


def test_a_difference_at_the_margin_needs_more_seeds_than_anyone_runs() -> None:
    made = paired([0.4, 0.5, 0.6], 0.5)
    assert made.word == INCONCLUSIVE
    assert made.more_seeds is None


def test_equal_accuracies_are_known_only_to_their_step() -> None:
    step = 1 / 359
    assert paired([0.0, 0.0], 0.005, resolution=step).word == INCONCLUSIVE
    assert paired([0.0, 0.0, 0.0], 0.005, resolution=step).word == EQUIVALENT
    assert paired([0.0, 0.0], 0.005).word == EQUIVALENT


def test_a_ratio_multiplies_and_knows_its_spread() -> None:
    made = ratio_of([(2.0, 1.0), (1.0, 2.0)])
    assert made is not None
    assert made.value == pytest.approx(1.0)
    assert not made.shown
    fast = ratio_of([(2.0, 1.0), (2.1, 1.0), (1.9, 1.0)])
    assert fast is not None
    assert fast.shown
    assert fast.low is not None
    assert fast.low > 1.5


def test_a_ratio_of_one_pair_has_no_interval_and_of_none_is_none() -> None:
    made = ratio_of([(3.0, 2.0)])
    assert made is not None
    assert (made.n, made.value, made.low, made.shown) == (1, pytest.approx(1.5), None, False)
    assert ratio_of([(1.0, 0.0), (math.nan, 1.0)]) is None
