"""Range checks that schedules share."""

from __future__ import annotations

import math


def frac(key: str, value: float) -> None:
    """Raises: ValueError unless value lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"schedule.{key} got {value}, want a share between 0 and 1")


def positive(key: str, value: float) -> None:
    """Raises: ValueError unless value is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"schedule.{key} got {value}, want a finite number above 0")


def power(gamma: float, exponent: int) -> float:
    """gamma ** exponent; infinite where float64 does not hold it."""
    try:
        return float(gamma**exponent)
    except OverflowError:
        return math.inf
