"""One file for each picture of runs; all draw any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mpt.report.figure import Drawn, Figure
from mpt.report.figures import exponents, formats, grad_norm, loss, lr, memory, quality, scale, throughput


class Picture(Protocol):
    """What draws: a module of this folder, or one of several in a module."""

    def figure(self, runs: Sequence[Drawn], buckets: int) -> Figure | None: ...


FIGURES: tuple[Picture, ...] = (loss, quality, scale, lr, grad_norm, throughput, memory, formats, *exponents.BY_ROLE)

_POINTS = 150_000
"""Points on one page, about 2 MB: more runs are drawn with fewer points each."""

_SERIES = 6
_MOST_BUCKETS, _LEAST_BUCKETS = 400, 10


def figures(runs: Sequence[Drawn]) -> list[Figure]:
    """All pictures that have something to show."""
    per_run = _POINTS // (5 * _SERIES * max(len(runs), 1))
    buckets = max(_LEAST_BUCKETS, min(_MOST_BUCKETS, per_run))
    return [made for part in FIGURES if (made := part.figure(runs, buckets)) is not None]
