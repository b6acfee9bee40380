"""How many times as fast (or as large): the ratio of paired positive figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mpt.stats.equivalence import ALPHA, interval_of


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of n paired ratios with its 1 - 2·alpha interval; bounds are None with one pair."""

    n: int
    value: float
    low: float | None
    high: float | None

    @property
    def shown(self) -> bool:
        """Whether the interval excludes 1: the difference is more than the spread of these pairs."""
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)


def ratio_of(pairs: Sequence[tuple[float, float]], alpha: float = ALPHA) -> Ratio | None:
    """candidate / baseline over pairs (candidate, baseline) that are both positive; None where there is none.

    Ratios multiply, so the interval is Student's on their logarithms.
    """
    logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0 and math.isfinite(a / b)]
    if not logs:
        return None
    found = interval_of(logs, alpha=alpha)
    if not found.known:
        return Ratio(1, math.exp(found.mean), None, None)
    return Ratio(found.n, math.exp(found.mean), math.exp(found.low), math.exp(found.high))
