"""A picture as data: Plotly's traces and layout, drawn by the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpt.report.compare.brief import Brief
from mpt.report.curves import Curve, kept

_DIGITS = 5
"""Significant digits of drawn numbers: more than a screen has pixels."""


@dataclass(frozen=True)
class Drawn:
    """A run in pictures: `group`, for its configuration `config`, is a colour; `index` what a switch turns off."""

    index: int
    group: int
    config: str
    label: str
    run: Brief


@dataclass(frozen=True)
class Figure:
    """`section` is the key of the part in which it stands. `log`: whether a logarithmic y axis makes sense.

    A trace's `meta.run` names the run that switches it, `meta.group` its colour.
    """

    key: str
    section: str
    title: str
    traces: tuple[dict[str, Any], ...]
    layout: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    log: bool = False


def points(curve: Curve, buckets: int) -> dict[str, Any]:
    """`x` and `y` of a line with at most 5 points a bucket; NaN and infinities are gaps."""
    index = kept(curve.values, buckets)
    return {"x": [int(v) for v in curve.steps[index]], "y": plain(curve.values[index].tolist())}


def plain(values: Iterable[float]) -> list[float | None]:
    """Short strict JSON numbers, None where they are not finite."""
    return [float(f"{v:.{_DIGITS}g}") if math.isfinite(v) else None for v in values]


def line(drawn: Drawn, curve: Curve, buckets: int, **more: Any) -> dict[str, Any]:
    """A line trace of one run."""
    meta = {"run": drawn.index, "group": drawn.group}
    return {"type": "scatter", "mode": "lines", "name": drawn.label, "meta": meta, **points(curve, buckets), **more}


def marks(
    drawn: Drawn, name: str, x: Sequence[int], y: Sequence[float], text: Sequence[str], symbol: str
) -> dict[str, Any]:
    """A trace of marks on one run."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{drawn.label}: {name}",
        "meta": {"run": drawn.index, "group": drawn.group, "mark": symbol},
        "x": list(x),
        "y": plain(y),
        "text": list(text),
        "hovertemplate": "step %{x}: %{text}<extra>%{fullData.name}</extra>",
    }
