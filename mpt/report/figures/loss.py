"""Training loss, with steps where it was NaN or infinite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpt.report.figure import Drawn, Figure, line, marks
from mpt.units import counted


def figure(runs: Sequence[Drawn], buckets: int) -> Figure:
    traces = [line(drawn, drawn.run.curves.loss, buckets) for drawn in runs]
    bad_steps = 0
    for drawn in runs:
        bad = drawn.run.curves.nonfinite
        bad_steps += drawn.run.curves.nonfinite_count
        if bad:
            text = ["the loss is NaN or infinite"] * len(bad)
            traces.append(marks(drawn, "non-finite loss", bad, _before(drawn, bad), text, "nonfinite"))
    note = (
        f"{counted(bad_steps, 'step')} with a NaN or infinite loss: marked ×; the line has gaps there"
        if bad_steps
        else ""
    )
    return Figure("loss", "curves", "Training loss", tuple(traces), _layout("loss"), note, log=True)


def _before(drawn: Drawn, steps: Sequence[int]) -> list[float]:
    """The last finite loss before each step: where the mark is put."""
    run = drawn.run
    good = np.flatnonzero(np.isfinite(run.loss))
    if not len(good):
        return [0.0] * len(steps)
    at = np.searchsorted(run.at[good], np.asarray(steps), side="left") - 1
    return [float(run.loss[good[max(i, 0)]]) for i in at]


def _layout(title: str) -> dict[str, object]:
    return {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": title}}}
