"""Quality against time, memory by size; configurations that another beats are greyed."""

from __future__ import annotations

from mpt.report.compare.comparison import Comparison
from mpt.report.compare.sections.verdict import greyed
from mpt.report.figure import Figure, plain
from mpt.report.section import clean
from mpt.units import bytes_text, number_text

_LEAST_PX, _SPREAD_PX = 12, 26
_ROOM, _LEAST_SPAN, _BEYOND = 0.3, 0.02, 0.05
"""Of the values' span, above and below; the least span, of their size; and how far past 0 and 1 a share is drawn."""


def figure(made: Comparison) -> Figure | None:
    shown = [
        (i, p) for i, p in enumerate(made.points)
        if p.quality is not None and p.step_ms is not None and p.peak_bytes is not None
    ]  # fmt: skip
    if len(shown) < 2:
        return None
    most = max(p.peak_bytes or 1.0 for _, p in shown)
    grey = greyed(made)
    traces = []
    for i, p in shown:
        assert p.quality is not None
        assert p.step_ms is not None
        assert p.peak_bytes is not None
        told = f"{number_text(p.quality)} {made.metric.name}, {p.step_ms:.3g} ms a step, {bytes_text(p.peak_bytes)}"
        traces.append({
            "type": "scatter", "mode": "markers+text", "name": clean(p.label), "text": [clean(p.label)],
            "textposition": "top center", "cliponaxis": False, "x": plain([p.step_ms]), "y": plain([p.quality]),
            "marker": {"size": _LEAST_PX + _SPREAD_PX * p.peak_bytes / most}, "hovertext": [told],
            "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
            "meta": {"group": i, "dim": p.label in grey},
        })  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "median step (ms): less is better"}},
        "yaxis": {
            "title": {"text": f"{made.metric.at} {made.metric.name}"},
            "range": _range([p.quality for _, p in shown if p.quality is not None], made.metric.name == "accuracy"),
        },
        "hovermode": "closest",
    }
    left_out = [clean(p.label) for p in made.points if p.label not in {q.label for _, q in shown}]
    note = (
        "size: peak memory; grey: another is as good or better in all three by its means (what is recommended is "
        "never greyed)"
    )
    if left_out:
        note += f". Not placed: {', '.join(left_out)} (emulated, or not measured)"
    return Figure("pareto", "verdict", "Quality, time and memory", tuple(traces), layout, note)


def _range(values: list[float], share: bool) -> list[float]:
    """Ends of the axis, with room for markers and labels; plotly's own are ±1 where all values are equal."""
    low, high = min(values), max(values)
    room = _ROOM * max(high - low, _LEAST_SPAN * (max(abs(low), abs(high)) or 1.0))
    ends = [low - room, high + room]
    return [max(ends[0], -_BEYOND), min(ends[1], 1 + _BEYOND)] if share else ends
