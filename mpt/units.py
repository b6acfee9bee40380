"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BYTE_STEPS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def bytes_text(count: float) -> str:
    """Bytes with three digits and a decimal unit: `512 MB`, `1.86 GB`."""
    for unit, size in _BYTE_STEPS:
        if abs(count) >= size:
            return f"{count / size:.3g} {unit}" if abs(count) < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def seconds_text(seconds: float) -> str:
    """A duration: `0.41 s`, `12 s`, `3:07 min`, `2:05:09 h`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def number_text(number: float, digits: int = 4) -> str:
    """A figure with few digits; whole ones with separators; `nan` and `inf` as such."""
    if 1000 <= abs(number) < 1e9 or (math.isfinite(number) and number == int(number) and abs(number) < 1e15):
        return f"{number:,.0f}"
    return f"{number:.{digits}g}"


def counted(count: float, noun: str, plural: str = "") -> str:
    """A count with its noun: `1 step`, `2,000 steps`, `2 losses`."""
    return f"{count:,.0f} {noun if count == 1 else plural or noun + 's'}"


def epochs_text(epochs: float) -> str:
    """`1 epoch`, `2.727 epochs`."""
    shown = f"{epochs:.4g}"
    return f"{shown} epoch" if shown == "1" else f"{shown} epochs"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
