"""Equivalent, worse, better or inconclusive: three-sided tests of paired differences against a stated margin.

A difference is candidate minus baseline of one seed, signed so that more is better. The line is cut at ±margin into
worse, equivalent and better; a word is said only when the other two are rejected, each at `alpha` (the two one-sided
tests of Schuirmann 1987 for `equivalent`, one one-sided test for each of the others: Goeman, Solari and Stijnen 2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ALPHA = 0.05
"""Share of comparisons in which each wrong word may be said."""

POWER = 0.8
"""Chance to reach a word for which the seeds still needed are counted."""

MOST_SEEDS = 1000
"""More are not counted: nobody runs them."""

EQUIVALENT, WORSE, BETTER, INCONCLUSIVE = "equivalent", "worse", "better", "inconclusive"


@dataclass(frozen=True)
class Interval:
    """Mean of n paired differences, their standard deviation, and the 1 - 2·alpha interval of the mean.

    With one pair there is no spread: `sd`, `low` and `high` are NaN.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there is a spread to go by."""
        return self.n > 1


@dataclass(frozen=True)
class Verdict:
    """A word with its evidence; `p` is the larger p-value of the tests that the word rests on (NaN for none)."""

    word: str
    interval: Interval
    margin: float
    alpha: float
    p: float

    @property
    def more_seeds(self) -> int | None:
        """Pairs still needed for a word with POWER, if mean and spread stay as they are; None: over MOST_SEEDS."""
        if self.word != INCONCLUSIVE:
            return 0
        if not self.interval.known:
            return 2 - self.interval.n
        total = seeds_needed(self.interval.mean, self.interval.sd, self.margin, self.alpha)
        return None if total is None else max(1, total - self.interval.n)


def paired(differences: Sequence[float], margin: float, *, alpha: float = ALPHA, resolution: float = 0.0) -> Verdict:
    """The verdict on paired differences.

    resolution: the metric's step (1 / samples for an accuracy); it bounds the spread of values that look equal.
    """
    assert margin > 0, "a margin is a positive number"
    interval = interval_of(differences, alpha=alpha, resolution=resolution)
    if not interval.known:
        return Verdict(INCONCLUSIVE, interval, margin, alpha, math.nan)
    word = decide(interval.low, interval.high, margin)
    return Verdict(word, interval, margin, alpha, _p(word, interval, margin))


def interval_of(values: Sequence[float], *, alpha: float = ALPHA, resolution: float = 0.0) -> Interval:
    """Mean and Student's interval of finite values.

    Each of the two numbers in a difference was rounded to `resolution`: variance resolution²/12 each.
    """
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2:
        return Interval(n, mean, math.nan, math.nan, math.nan)
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) + resolution**2 / 6)
    half = _t(n - 1, alpha) * sd / math.sqrt(n)
    return Interval(n, mean, sd, mean - half, mean + half)


def decide(low: float, high: float, margin: float) -> str:
    """The word for an interval of the mean."""
    if -margin < low and high < margin:
        return EQUIVALENT
    if high < -margin:
        return WORSE
    return BETTER if low > margin else INCONCLUSIVE


def seeds_needed(mean: float, sd: float, margin: float, alpha: float = ALPHA) -> int | None:
    """The least number of pairs with which the word that `mean` points to is reached with POWER; None: too many."""
    high = 2
    while power(high, mean, sd, margin, alpha) < POWER:
        if high >= MOST_SEEDS:
            return None
        high = min(2 * high, MOST_SEEDS)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, mean, sd, margin, alpha) >= POWER else (middle, high)
    return high


def power(n: int, mean: float, sd: float, margin: float, alpha: float = ALPHA) -> float:
    """Chance that n pairs of that true mean and spread are called by their right name.

    For `equivalent` the chances of the two tests are combined as 1 - sum of failures, a lower bound that is
    close where it matters (Phillips 1990).
    """
    if n < 2:
        return 0.0
    if sd == 0:
        return float(abs(mean) != margin)
    critical, se = _t(n - 1, alpha), sd / math.sqrt(n)
    if abs(mean) >= margin:
        return _above(n - 1, (abs(mean) - margin) / se, critical)
    both = [_above(n - 1, (margin + sign * mean) / se, critical) for sign in (1, -1)]
    return max(0.0, sum(both) - 1)


def _above(df: int, noncentrality: float, critical: float) -> float:
    """P(T > critical) for the noncentral t."""
    from scipy.special import nctdtr

    if noncentrality > critical + 12:  # beyond what the series can sum, and surely above
        return 1.0
    return 1.0 - float(nctdtr(df, noncentrality, critical))


def _t(df: int, alpha: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, 1 - alpha))


def _p(word: str, interval: Interval, margin: float) -> float:
    """The largest p-value of the one-sided tests behind the word; of the equivalence test where there is no word."""
    from scipy.special import stdtr

    se = interval.sd / math.sqrt(interval.n)
    if se == 0:
        return 0.0 if word != INCONCLUSIVE else 1.0
    if word in (WORSE, BETTER):
        return float(stdtr(interval.n - 1, -(abs(interval.mean) - margin) / se))
    return float(stdtr(interval.n - 1, -(margin - abs(interval.mean)) / se))
