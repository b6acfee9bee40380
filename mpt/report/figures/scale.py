"""The loss scale, with each skipped step and its cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpt.report.figure import Drawn, Figure, line, marks
from mpt.report.section import clean
from mpt.units import counted


def figure(runs: Sequence[Drawn], buckets: int) -> Figure | None:
    scaled = [drawn for drawn in runs if _moves(drawn) or drawn.run.curves.skips]
    if not scaled:
        return None
    traces = [line(drawn, drawn.run.curves.scale, buckets, line={"shape": "hv"}) for drawn in scaled]
    skipped = drawn_skips = 0
    for drawn in scaled:
        skips = drawn.run.curves.skips
        skipped, drawn_skips = skipped + drawn.run.curves.skip_count, drawn_skips + len(skips)
        if skips:
            text = [f"skipped: {clean(skip.cause)}" for skip in skips]
            where = [skip.step for skip in skips], [skip.scale for skip in skips]
            traces.append(marks(drawn, "skipped", *where, text, "skip"))
    note = f"{counted(skipped, 'skipped step')}, marked ▾ with the cause" if skipped else "no step was skipped"
    if drawn_skips < skipped:
        note += f" ({drawn_skips:,} of them drawn)"
    layout = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "loss scale"}, "type": "log", **_powers(scaled)},
    }
    return Figure("scale", "scaling", "Scale by step", tuple(traces), layout, note)


def _powers(runs: Sequence[Drawn]) -> dict[str, object]:
    """At most ten ticks, at powers of two."""
    values = np.concatenate([drawn.run.curves.scale.values for drawn in runs])
    known = values[np.isfinite(values) & (values > 0)]
    if not len(known):
        return {}
    low, high = int(np.floor(np.log2(known.min()))) - 1, int(np.ceil(np.log2(known.max()))) + 1
    powers = range(low, high + 1, max(1, (high - low) // 9))
    bounds = [low * float(np.log10(2)), high * float(np.log10(2))]
    return {"tickvals": [2.0**k for k in powers], "ticktext": [f"2<sup>{k}</sup>" for k in powers], "range": bounds}


def _moves(drawn: Drawn) -> bool:
    """Whether the scale is more than the constant 1 of a run without scaling."""
    values = drawn.run.curves.scale.values
    return bool(np.any(values != 1))
