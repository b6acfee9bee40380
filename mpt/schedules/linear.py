"""A straight line from the peak to a share of it."""

from __future__ import annotations

from collections.abc import Callable

from mpt.schedules._check import frac


def build(total: int, final_frac: float = 0.0) -> Callable[[int], float]:
    """1 at update 0, `final_frac` at `total` and after."""
    frac("final_frac", final_frac)
    return lambda update: 1 + (final_frac - 1) * min(update / total, 1.0)
