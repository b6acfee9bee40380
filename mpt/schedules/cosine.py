"""Half a cosine from the peak to a share of it."""

from __future__ import annotations

import math
from collections.abc import Callable

from mpt.schedules._check import frac


def build(total: int, final_frac: float = 0.0) -> Callable[[int], float]:
    """1 at update 0, `final_frac` at `total` and after. Source: SGDR (Loshchilov & Hutter 2017), one period."""
    frac("final_frac", final_frac)

    def factor(update: int) -> float:
        share = min(update / total, 1.0)
        return final_frac + (1 - final_frac) * 0.5 * (1 + math.cos(math.pi * share))

    return factor
