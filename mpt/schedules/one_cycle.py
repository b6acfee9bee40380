"""Up by a cosine, then down by a cosine, in one run."""

from __future__ import annotations

import math
from collections.abc import Callable

from mpt.schedules._check import frac


def build(
    total: int, pct_start: float = 0.3, start_frac: float = 0.04, final_frac: float = 4e-6
) -> Callable[[int], float]:
    """`start_frac` at update 0, 1 after `pct_start` of the run, `final_frac` at its last update.

    Source: Smith & Topin 2018; the defaults are torch.optim.lr_scheduler.OneCycleLR's.
    """
    for key, value in (("pct_start", pct_start), ("start_frac", start_frac), ("final_frac", final_frac)):
        frac(key, value)
    top = pct_start * total - 1
    last = max(total - 1, 1)

    def blend(start: float, end: float, share: float) -> float:
        return end + (start - end) / 2 * (1 + math.cos(math.pi * share))

    def factor(update: int) -> float:
        if update <= top:
            return blend(start_frac, 1.0, update / top if top > 0 else 1.0)
        return blend(1.0, final_frac, min((update - top) / max(last - top, 1e-9), 1.0))

    return factor
