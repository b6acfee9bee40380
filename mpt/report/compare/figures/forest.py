"""Each configuration's difference from its baseline, with its interval, and the margin."""

from __future__ import annotations

import math

from mpt.report.compare.comparison import Comparison
from mpt.report.compare.judge import seeds_text
from mpt.report.figure import Figure
from mpt.report.section import clean


def figure(made: Comparison) -> Figure | None:
    judged = [j for j in made.judged if j.verdict is not None and j.verdict.interval.n]
    if not judged:
        return None
    groups = {config.label: i for i, config in enumerate(made.configs)}
    traces, extent = [], 0.0
    for j in judged:
        assert j.verdict is not None
        found, label = j.verdict.interval, clean(j.pairing.candidate.label)
        half = 0.0 if math.isnan(found.low) else found.mean - found.low
        traces.append({
            "type": "scatter", "mode": "markers", "name": label, "x": [found.mean], "y": [label],
            "error_x": {"type": "data", "array": [half], "visible": half > 0, "thickness": 3, "width": 8},
            "marker": {"size": 11}, "text": [clean(f"{seeds_text(j)}. {j.sentence}")],
            "hovertemplate": "%{text}<extra></extra>",
            "meta": {"group": groups[j.pairing.candidate.label]},
        })  # fmt: skip
        extent = max(extent, abs(found.mean) + half, j.verdict.margin)
    margins = [j.verdict.margin for j in judged if j.verdict is not None]
    layout = {
        "height": 130 + 40 * len(judged),
        "xaxis": {
            "title": {"text": f"difference in {made.metric.at} {made.metric.name}: more is better"},
            "range": [-1.1 * extent, 1.1 * extent],
        },
        "yaxis": {"type": "category", "range": [len(judged) - 0.5, -0.5]},
        "shapes": [
            {"type": "rect", "xref": "x", "yref": "paper", "x0": -min(margins), "x1": min(margins), "y0": 0, "y1": 1}
        ],
        "hovermode": "closest",
    }
    note = "bars: 90% intervals over paired seeds; band: the margin; equivalent are those that lie inside it"
    return Figure("forest", "verdict", "Differences from the baseline", tuple(traces), layout, note)
