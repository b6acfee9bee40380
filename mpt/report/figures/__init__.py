"""One file for each picture of runs; all draw any number of them."""

from __future__ import annotations

from collections.abc import Sequence

from mpt.report.figure import Drawn, Figure
from mpt.report.figures import formats, grad_norm, loss, lr, memory, quality, scale, throughput

FIGURES = (loss, quality, scale, lr, grad_norm, throughput, memory, formats)

_POINTS = 150_000
"""Points on one page, about 2 MB: more runs are drawn with fewer points each."""

_SERIES = 6
_MOST_BUCKETS, _LEAST_BUCKETS = 400, 10


def figures(runs: Sequence[Drawn]) -> list[Figure]:
    """All pictures that have something to show."""
    per_run = _POINTS // (5 * _SERIES * max(len(runs), 1))
    buckets = max(_LEAST_BUCKETS, min(_MOST_BUCKETS, per_run))
    return [made for part in FIGURES if (made := part.figure(runs, buckets)) is not None]
