"""Throughput by step."""

from __future__ import annotations

from collections.abc import Sequence

from mpt.report.figure import Drawn, Figure, line


def figure(runs: Sequence[Drawn], buckets: int) -> Figure:
    traces = tuple(line(drawn, drawn.run.curves.samples_per_s, buckets) for drawn in runs)
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "samples/s"}}}
    emulated = any(drawn.run.emulated for drawn in runs)
    note = "emulated runs are drawn too: their speed says nothing about the format" if emulated else ""
    return Figure("throughput", "curves", "Throughput", traces, layout, note)
