"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
NONFINITE = "×"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Means of up to `width` equal parts as bars between the least and the largest; a part with NaN or inf is `×`."""
    parts = [_part(values, i, width) for i in range(min(width, len(values)))]
    finite = [p for p in parts if math.isfinite(p)]
    if not finite:
        return NONFINITE * len(parts)
    low, high = min(finite), max(finite)
    return "".join(_bar(p, low, high) for p in parts)


def _part(values: Sequence[float], i: int, width: int) -> float:
    count = min(width, len(values))
    part = values[i * len(values) // count : (i + 1) * len(values) // count]
    return math.fsum(part) / len(part) if all(map(math.isfinite, part)) else math.nan


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return NONFINITE
    share = (value - low) / (high - low) if high > low else 0.0
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]
