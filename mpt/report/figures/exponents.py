"""Heat maps of exponents by layer, with the ranges of formats in rows above them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpt.formats.table import format_of
from mpt.record.numerics import ACTIVATIONS, GRADIENTS, OUTPUT_GRADIENTS, SCALED, WEIGHTS, Numerics, module_of
from mpt.report.advice.recommend import judged_scale
from mpt.report.advice.survival import unscaled
from mpt.report.advice.words import power
from mpt.report.figure import Drawn, Figure, plain
from mpt.report.section import clean, get
from mpt.stats.exponents import Exponents, bounds_log2, merged

_HEIGHT_PX, _LEAST_PX, _MOST_PX = 15, 260, 1600
_LEAST_SHARE_LOG10 = -6
_FIRST = -127
"""Exponent of the first bin."""

_TITLES = {
    ACTIVATIONS: "Exponents of activations",
    WEIGHTS: "Exponents of weights",
    GRADIENTS: "Exponents of weight gradients, unscaled",
    OUTPUT_GRADIENTS: "Exponents of gradients of activations, unscaled",
}


@dataclass(frozen=True)
class Heatmap:
    """The picture of one role's tensors."""

    role: str

    def figure(self, runs: Sequence[Drawn], buckets: int) -> Figure | None:
        """None for several runs, and for one that was not looked at."""
        if len(runs) != 1:
            return None
        run = runs[0].run.data
        held = _by_module(run.numerics, self.role)
        if not held:
            return None
        own = format_of("float16") if get(run.config, "precision", "compute") == "float16" else None
        ranges = _ranges(judged_scale(run.numerics, own) if self.role in SCALED else 1.0)
        low, high = _columns(held.values(), [edge for _, edges in ranges for edge in edges])
        traces = (
            _heat(held, [name for name, _ in ranges], low, high),
            *(_range(i, name, edges) for i, (name, edges) in enumerate(ranges)),
        )
        return Figure(
            f"exponents_{self.role}", "numerics", _TITLES[self.role], traces, _layout(held, ranges, low, high), _NOTE
        )


BY_ROLE = tuple(Heatmap(role) for role in (GRADIENTS, OUTPUT_GRADIENTS, ACTIVATIONS, WEIGHTS))

_NOTE = (
    "colour is the share of a layer's numbers in each power of two, over all steps looked at; the lines above are what "
    "a format holds, its subnormals up to the second mark; left of the dashed lines float16 has 0, right infinity"
)


def _by_module(numerics: Numerics, role: str) -> dict[str, Exponents]:
    """By module in the order of the model; modules whose numbers are all 0 are left out."""
    parts: dict[str, list[Exponents]] = {}
    for look in numerics.looks:
        for name, x in look.of(role).items():
            parts.setdefault(module_of(role, name), []).append(unscaled(x, look.scale_of(role)))
    order = list(parts)
    if role == OUTPUT_GRADIENTS:  # they come from the last layer to the first
        order.reverse()
    return {name: found for name in order if (found := merged(parts[name])).some}


def _ranges(scale: float) -> list[tuple[str, tuple[float, float, float]]]:
    """Names of formats with the logarithms of their ends, for unscaled numbers under that loss scale."""
    shift = math.log2(scale)
    half = bounds_log2(format_of("float16"))
    found = [("float16", half)]
    if shift:
        found = [(f"float16 × {power(scale)}", _moved(half, shift)), ("float16 × 1", half)]
    return [*found, *((f"{name}, alone", bounds_log2(format_of(name))) for name in ("e5m2", "e4m3"))]


def _moved(edges: tuple[float, float, float], bits: float) -> tuple[float, float, float]:
    return edges[0] - bits, edges[1] - bits, edges[2] - bits


def _columns(held: Any, edges: Sequence[float]) -> tuple[int, int]:
    """First and last exponent that is drawn."""
    some = [np.flatnonzero(x.counts) + _FIRST for x in held]
    low = min(min(int(s[0]) for s in some), math.floor(min(edges)))
    high = max(max(int(s[-1]) for s in some), math.ceil(max(edges)) - 1)
    return low - 1, high + 1


def _heat(held: dict[str, Exponents], above: Sequence[str], low: int, high: int) -> dict[str, Any]:
    """The shares, under empty rows of the names `above`: Plotly wants every category in the first trace."""
    first, last = max(low - _FIRST, 0), high - _FIRST + 1
    shares = np.array([x.counts[first:last] / x.some for x in held.values()])
    with np.errstate(divide="ignore"):
        logs = np.log10(shares)
    blank = [[None] * shares.shape[1]] * len(above)
    return {
        "type": "heatmap",
        "x": [k + 0.5 + _FIRST for k in range(first, min(last, len(next(iter(held.values())).counts)))],
        "y": [*above, *(clean(name) or "(whole model)" for name in held)],
        "z": [*blank, *(plain(row) for row in np.where(logs < _LEAST_SHARE_LOG10, -np.inf, logs).tolist())],
        "customdata": [*blank, *(plain(row) for row in (100 * shares).tolist())],
        "hovertemplate": "%{y}: %{customdata:.4g} % around 2^%{x}<extra></extra>",
        "zmin": _LEAST_SHARE_LOG10,
        "zmax": 0,
        "ygap": 1,
        "hoverongaps": False,
        "colorbar": {
            "tickvals": [-6, -4, -2, 0], "ticktext": ["0.0001 %", "0.01 %", "1 %", "100 %"], "orientation": "h",
            "thickness": 10, "x": 0, "xanchor": "left", "y": 0, "yanchor": "top", "len": 1, "tickfont": {"size": 10},
        },
        "meta": {"sequential": True},
    }  # fmt: skip


def _range(i: int, name: str, edges: tuple[float, float, float]) -> dict[str, Any]:
    """What a format holds, as a line: smallest number, smallest normal one, largest."""
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "x": list(edges), "y": [name] * 3,
        "text": ["smallest number", "smallest normal number", "largest number"],
        "hovertemplate": f"{name}: %{{text}}, 2^%{{x}}<extra></extra>",
        "line": {"width": 3}, "marker": {"symbol": "line-ns-open", "size": 9}, "meta": {"group": i + 1},
    }  # fmt: skip


def _layout(
    held: dict[str, Exponents], ranges: Sequence[tuple[str, tuple[float, float, float]]], low: int, high: int
) -> dict[str, Any]:
    height = min(max(_HEIGHT_PX * (len(ranges) + len(held)) + 110, _LEAST_PX), _MOST_PX)
    half = ranges[0][1]
    ticks = [k for k in range(-8 * (-low // 8), high + 1, 8)]
    return {
        "height": height, "hovermode": "closest",
        "yaxis": {"autorange": "reversed", "type": "category"},
        "xaxis": {"side": "top", "range": [low, high + 1], "tickvals": ticks,
                  "ticktext": [f"2<sup>{k}</sup>" for k in ticks]},
        "shapes": [
            {"type": "line", "name": "limit", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper"}
            for x in (half[0] - 1, half[2])
        ],
    }  # fmt: skip
