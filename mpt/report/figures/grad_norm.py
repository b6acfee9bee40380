"""Gradient norm (unscaled) by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpt.report.figure import Drawn, Figure, line


def figure(runs: Sequence[Drawn], buckets: int) -> Figure:
    traces = tuple(line(drawn, drawn.run.curves.grad_norm, buckets) for drawn in runs)
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "norm"}}}
    return Figure("grad_norm", "curves", "Gradient norm (unscaled)", traces, layout, _note(runs), log=True)


def _note(runs: Sequence[Drawn]) -> str:
    bad = any(not np.isfinite(drawn.run.curves.grad_norm.values).all() for drawn in runs)
    return "gaps are steps whose gradients were NaN or infinite" if bad else ""
