"""A constant ratio from each update to the next."""

from __future__ import annotations

from collections.abc import Callable

from mpt.schedules._check import positive, power


def build(total: int, gamma: float = 0.999) -> Callable[[int], float]:
    """gamma ** update, constant from `total` on; gamma > 0."""
    positive("gamma", gamma)
    return lambda update: power(gamma, min(update, total))
