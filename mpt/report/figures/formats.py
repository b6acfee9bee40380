"""Planned against observed formats, module by module, for one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpt.report.figure import Drawn, Figure
from mpt.report.section import clean, objects

_ROLES = ("planned", "forward", "backward")
_NEUTRAL = ("follows", "-")
"""Cells that are no format: grey, as no observed one can differ from them."""
_HEIGHT_PX, _LEAST_PX, _MOST_PX = 15, 220, 1400


def figure(runs: Sequence[Drawn], buckets: int) -> Figure | None:
    """None for several runs: the tables of each report have it."""
    rows = objects(runs[0].run.data.audit, "rows") if len(runs) == 1 else []
    if not rows:
        return None
    cells = [[_format(row.get(role)) for role in _ROLES] for row in rows]
    names = sorted({cell for line in cells for cell in line})
    text = [
        [_hover(row, role, cell) for role, cell in zip(_ROLES, line, strict=True)]
        for row, line in zip(rows, cells, strict=True)
    ]
    trace = {
        "type": "heatmap",
        "x": list(_ROLES),
        "y": [clean(row.get("name", "")) for row in rows],
        "z": [[names.index(cell) for cell in line] for line in cells],
        "text": text,
        "hovertemplate": "%{text}<extra></extra>",
        "xgap": 2,
        "ygap": 1,
        "meta": {"categories": names, "neutral": [name for name in names if name in _NEUTRAL]},
    }
    height = min(max(_HEIGHT_PX * len(rows) + 90, _LEAST_PX), _MOST_PX)
    layout = {"height": height, "yaxis": {"autorange": "reversed", "type": "category"}, "xaxis": {"side": "top"}}
    note = (
        "hover tells whether a module computed as planned: one that is planned in a format has its colour in all three "
        "cells; one that “follows” (grey) takes the formats of its inputs, and its observed cells may have any colours"
    )
    return Figure("formats", "precision", "Planned and observed formats by module", (trace,), layout, note)


def _format(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(clean(v) for v in value) or "-"
    return clean(value or "-")


def _hover(row: dict[str, Any], role: str, cell: str) -> str:
    verdict = "as planned" if row.get("matches") is not False else "differs from the plan"
    return f"{clean(row.get('name', ''))}, {role}: {cell} ({verdict})"
