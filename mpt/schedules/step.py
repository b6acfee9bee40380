"""A drop by a factor after every so many updates."""

from __future__ import annotations

from collections.abc import Callable

from mpt.schedules._check import positive, power


def build(total: int, every: int = 1000, gamma: float = 0.1) -> Callable[[int], float]:
    """gamma ** (update // every), constant from `total` on; gamma > 0, every ≥ 1."""
    positive("gamma", gamma)
    positive("every", every)
    return lambda update: power(gamma, min(update, total) // every)
