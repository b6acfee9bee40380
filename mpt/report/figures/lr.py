"""Learning rate by step."""

from __future__ import annotations

from collections.abc import Sequence

from mpt.report.figure import Drawn, Figure, line


def figure(runs: Sequence[Drawn], buckets: int) -> Figure:
    traces = tuple(line(drawn, drawn.run.curves.lr, buckets) for drawn in runs)
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "learning rate"}}}
    return Figure("lr", "curves", "Learning rate", traces, layout)
