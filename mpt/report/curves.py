"""Long series made short for drawing: every spike and every gap survives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpt.record.reader import RunData, Steps

BUCKETS = 400
"""Parts of a long series, of each of which first, least, largest and last point are drawn: more than pixels show."""

MOST_MARKS = 500
"""Skipped steps that are marked one by one; the rest are counted."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Points of one series by step; NaN is a gap."""

    steps: NDArray[np.int64]
    values: Array


@dataclass(frozen=True)
class Skip:
    step: int
    scale: float
    cause: str


@dataclass(frozen=True)
class Curves:
    """What is drawn of one run. `nonfinite`: steps whose loss was NaN or infinite, `skips`: steps that were skipped;
    both are thinned to MOST_MARKS, their true counts are beside them."""

    loss: Curve
    lr: Curve
    grad_norm: Curve
    scale: Curve
    samples_per_s: Curve
    nonfinite: tuple[int, ...]
    nonfinite_count: int
    skips: tuple[Skip, ...]
    skip_count: int


def kept(values: Array, buckets: int = BUCKETS) -> NDArray[np.int64]:
    """Indices of the points to draw: of each bucket the first, least, largest, last and first non-finite one.

    Source: M4 (Jugel et al. 2014), which draws the same pixels as all points would.
    """
    n = len(values)
    if n <= 4 * buckets:
        return np.arange(n)
    size = -(-n // buckets)
    rows = -(-n // size)
    padded = np.full(rows * size, np.nan)
    padded[:n] = values
    table = padded.reshape(rows, size)
    finite = np.isfinite(table)
    start = np.arange(rows) * size
    least = start + np.where(finite, table, np.inf).argmin(axis=1)
    largest = start + np.where(finite, table, -np.inf).argmax(axis=1)
    gap = start + (~finite).argmax(axis=1)
    found = np.concatenate([start, np.minimum(start + size - 1, n - 1), least, largest, gap])
    return np.unique(found[found < n])


def curves(run: RunData) -> Curves:
    """The run's series, short enough to draw."""
    steps = run.steps
    loss = _array(steps.loss)
    time_s = _array(steps.time_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = _array(steps.samples) / np.where(time_s > 0, time_s, np.nan)
    bad = np.flatnonzero(~np.isfinite(loss))
    at = np.asarray(steps.step, dtype=np.int64)
    return Curves(
        loss=_curve(at, loss),
        lr=_curve(at, _array(steps.lr)),
        grad_norm=_curve(at, _array(steps.grad_norm)),
        scale=_curve(at, _array(steps.scale)),
        samples_per_s=_curve(at, rate),
        nonfinite=tuple(int(at[i]) for i in _thinned(bad)),
        nonfinite_count=len(bad),
        **_skips(run, steps),
    )


def _array(values: list[Any]) -> Array:
    return np.asarray(values, dtype=np.float64)


def _curve(at: NDArray[np.int64], values: Array) -> Curve:
    index = kept(values)
    return Curve(at[index], values[index])


def _thinned(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(indices) <= MOST_MARKS:
        return indices
    chosen = np.linspace(0, len(indices) - 1, MOST_MARKS).astype(np.int64)
    return np.asarray(indices[chosen], dtype=np.int64)


def _skips(run: RunData, steps: Steps) -> dict[str, Any]:
    causes = {e.get("step"): str(e.get("cause", "unknown")) for e in run.events if e.get("kind") == "skip"}
    missed = np.flatnonzero(~np.asarray(steps.applied, dtype=bool))
    marks = tuple(
        Skip(steps.step[i], steps.scale[i], causes.get(steps.step[i], "unknown").replace("_", " "))
        for i in _thinned(missed)
    )
    return {"skips": marks, "skip_count": len(missed)}
