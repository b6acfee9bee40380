"""Scales and shares as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpt.report.section import clean
from mpt.units import counted, number_text


def power(scale: float) -> str:
    """A scale, as a power of two where it is one."""
    exponent = math.log2(scale) if scale > 0 else math.nan
    return f"2^{exponent:.0f}" if exponent == round(exponent) else number_text(scale)


def power_of(log2: float | None) -> str:
    """A magnitude by its logarithm."""
    return "-" if log2 is None else f"2^{log2:.1f}"


def share(value: float | None) -> str:
    """A share as text, never 0 where it is not."""
    if value is None:
        return "-"
    if 0 < value < 5e-5:
        return "under 0.01 %"
    return f"{100 * value:.2f} %" if value < 0.1 else f"{100 * value:.1f} %"


def some(names: Sequence[str], of: int) -> str:
    """How many layers, with the first three by name."""
    shown = ", ".join(clean(name or "(whole model)") for name in names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names)} of {counted(of, 'layer')} ({shown})"
