"""The evaluations' main metric by step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpt.report.figure import Drawn, Figure, plain
from mpt.report.section import number

_METRICS = ("accuracy", "perplexity", "loss")


def figure(runs: Sequence[Drawn], buckets: int) -> Figure | None:
    name = next(
        (n for n in _METRICS if any(number(row, n) is not None for d in runs for row in d.run.data.evals)), None
    )
    if name is None:
        return None
    traces = []
    for drawn in runs:
        rows = [row for row in drawn.run.data.evals if number(row, "step") is not None]
        values = [v if (v := number(row, name)) is not None else math.nan for row in rows]
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": drawn.label,
            "meta": {"run": drawn.index, "group": drawn.group},
            "x": [number(row, "step") for row in rows], "y": plain(values),
        })  # fmt: skip
    title = "evaluation loss" if name == "loss" else name
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": title}}}
    return Figure("quality", "curves", f"Evaluations: {title}", tuple(traces), layout, log=name != "accuracy")
