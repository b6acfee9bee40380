"""What held the peak memory, stacked, and the peak that was predicted."""

from __future__ import annotations

from collections.abc import Sequence

from mpt.report.figure import Drawn, Figure
from mpt.report.section import number
from mpt.report.sections.memory import PARTS


def figure(runs: Sequence[Drawn], buckets: int) -> Figure | None:
    """One bar for each configuration, from its first run: the split does not depend on the seed."""
    shown = list({drawn.group: drawn for drawn in reversed(runs)}.values())[::-1]
    shown = [drawn for drawn in shown if number(drawn.run.data.summary, "memory", "peak_bytes") is not None]
    if not shown:
        return None
    names = [drawn.config for drawn in shown]
    traces: list[dict[str, object]] = []
    for i, (key, title) in enumerate(PARTS):
        sizes = [number(drawn.run.data.summary, "memory", f"{key}_bytes") for drawn in shown]
        if any(sizes):
            traces.append({"type": "bar", "name": title, "x": names, "y": sizes, "meta": {"part": i}})
    traces.append(_marks("peak", "peak_bytes", names, shown, "peak"))
    if any(number(d.run.data.summary, "memory", "predicted_peak_bytes") for d in shown):
        traces.append(_marks("predicted peak", "predicted_peak_bytes", names, shown, "predicted"))
    layout = {"barmode": "stack", "yaxis": {"title": {"text": "bytes"}, "exponentformat": "SI"}, "showlegend": True}
    return Figure("memory", "memory", "Peak memory, and what held it", tuple(traces), layout)


def _marks(name: str, key: str, names: list[str], shown: Sequence[Drawn], mark: str) -> dict[str, object]:
    sizes = [number(drawn.run.data.summary, "memory", key) for drawn in shown]
    return {"type": "scatter", "mode": "markers", "name": name, "x": names, "y": sizes, "meta": {"mark": mark}}
