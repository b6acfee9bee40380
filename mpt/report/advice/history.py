"""How large the gradients of each step were: measured at the looks, between them from the norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mpt.formats.table import NumberFormat, format_of
from mpt.record.numerics import GRADIENTS, SCALED, Look, Numerics, module_of
from mpt.record.reader import RunData
from mpt.report.advice.survival import vanished
from mpt.report.section import get
from mpt.stats.exponents import Exponents, merged, overflow_log2

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """The weight gradients of the step at `index`, all as one and by layer, multiplied by `scale`."""

    index: int
    whole: Exponents
    layers: tuple[Exponents, ...]
    scale: float


@dataclass(frozen=True)
class History:
    """One entry for each step. `largest`: log2 of the largest unscaled gradient (-inf: all are 0); `limit`: log2 of
    the largest loss scale at which the step does not overflow in `spec` (-inf: its loss was non-finite).

    `layers`: log2 of each layer's largest gradient relative to `largest`, at each look; `nearest`: for each step the
    last look up to it.
    """

    spec: NumberFormat
    largest: Array
    limit: Array
    layers: Array
    nearest: NDArray[np.int64]
    looks: tuple[Seen, ...]
    own: bool
    """Whether the run computed in `spec` itself: what vanished at its own scale can only be guessed at."""

    def __len__(self) -> int:
        return len(self.limit)

    def broken(self, steps: int | None = None) -> int:
        """How many of the first `steps` no loss scale would have kept."""
        return int(np.isneginf(self.limit[:steps]).sum())

    def layers_at(self, index: int) -> Array:
        """log2 of each layer's largest unscaled gradient at a step."""
        found: Array = self.layers[self.nearest[index]] + self.largest[index]
        return found

    def lost(self, seen: Seen, scale: float, powers: Sequence[int] | NDArray[np.int64] | None = None) -> float:
        """The share of weight gradients that is 0 or infinite in `spec` at this loss scale; `powers`: times a power of
        two for each layer."""
        if powers is None or not len(powers):
            return seen.whole.loss(self.spec, scale / seen.scale).lost
        gone = (
            p.loss(self.spec, scale * 2.0**e / seen.scale).lost * p.some
            for p, e in zip(seen.layers, powers, strict=True)
        )
        return sum(gone) / seen.whole.some


def history(run: RunData, spec: str = "float16") -> History | None:
    """None where no look of the run has finite gradients."""
    row, steps = format_of(spec), run.steps
    at = {step: i for i, step in enumerate(steps.step)}
    looks = [look for look in run.numerics.looks if look.step in at and _largest(look) is not None]
    if not looks:
        return None
    where = np.asarray([at[look.step] for look in looks], dtype=np.float64)
    norm = _log2(np.asarray(steps.grad_norm, dtype=np.float64))
    seen = np.asarray([_largest(look) for look in looks])
    largest = _between(where, seen, norm)
    own = get(run.config, "precision", "compute") == row.name
    limit = _limits(run, largest, row, own)
    names = _modules(looks)
    told = tuple(_seen(at[look.step], look, names, row if own else None) for look in looks)
    nearest = np.clip(np.searchsorted(where, np.arange(len(steps)), side="right") - 1, 0, len(looks) - 1)
    layers = _layers(looks, names, seen)
    return History(row, largest, limit, layers, nearest, tuple(s for s in told if s.whole.some), own)


@lru_cache(maxsize=4)
def of_looks(numerics: Numerics, spec: str = "float16") -> History | None:
    """The looks alone as a history, for what needs no other step; None where none has finite gradients."""
    row = format_of(spec)
    looks = [look for look in numerics.looks if _largest(look) is not None]
    if not looks:
        return None
    largest, names = np.asarray([_largest(look) for look in looks]), _modules(looks)
    told = tuple(seen for i, look in enumerate(looks) if (seen := _seen(i, look, names, None)).whole.some)
    layers, nearest = _layers(looks, names, largest), np.arange(len(looks))
    return History(row, largest, overflow_log2(row) - largest, layers, nearest, told, False)


def _modules(looks: Sequence[Look]) -> list[str]:
    return list(dict.fromkeys(module_of(role, n) for look in looks for role in SCALED for n in look.of(role)))


def _seen(index: int, look: Look, names: Sequence[str], computed: NumberFormat | None) -> Seen:
    by_layer: dict[str, list[Exponents]] = {name: [] for name in names}
    for name, tensor in look.of(GRADIENTS).items():
        by_layer[module_of(GRADIENTS, name)].append(tensor if computed is None else vanished(tensor, computed))
    layers = tuple(merged(parts) for parts in by_layer.values())
    return Seen(index, merged(layers), layers, look.scale)


def _largest(look: Look) -> float | None:
    """log2 of the largest unscaled number of the backward pass; None where one is not finite, or all are 0."""
    tensors = [t for role in SCALED for t in look.of(role).values()]
    if any(t.nonfinite for t in tensors):
        return None
    tops = [t.top for t in tensors if t.top is not None]
    return max(tops) - math.log2(look.scale) if tops else None


def _between(where: Array, seen: Array, norm: Array) -> Array:
    """The largest gradient of every step: its norm, and its distance from the norm as it was at the looks around it."""
    steps = np.arange(len(norm), dtype=np.float64)
    base = norm[where.astype(np.int64)]
    known = np.isfinite(base)
    if not known.any():
        return np.interp(steps, where, seen)
    distance = np.interp(steps, where[known], (seen - base)[known])
    between = np.where(np.isposinf(norm) | np.isnan(norm), np.interp(steps, where, seen), norm + distance)
    between[where.astype(np.int64)] = seen
    return between


def _limits(run: RunData, largest: Array, row: NumberFormat, own: bool) -> Array:
    """The scale from which on a step overflows. What the run itself did is a bound where it computed in the format."""
    limit = overflow_log2(row) - largest
    scale = _log2(np.asarray(run.steps.scale, dtype=np.float64))
    applied = np.asarray(run.steps.applied, dtype=bool)
    broken = ~np.isfinite(np.asarray(run.steps.loss, dtype=np.float64)) | (~applied & (not own))
    if own:
        limit = np.where(applied, np.maximum(limit, scale), np.minimum(limit, np.nextafter(scale, -np.inf)))
    return np.where(broken, -np.inf, limit)


def _layers(looks: Sequence[Look], names: Sequence[str], seen: Array) -> Array:
    """Shapes: (looks, layers); -inf where a layer has no gradient."""
    at = {name: i for i, name in enumerate(names)}
    table = np.full((len(looks), len(names)), -np.inf)
    for row, look in zip(table, looks, strict=True):
        for role in SCALED:
            for name, tensor in look.of(role).items():
                if tensor.top is not None:
                    column = at[module_of(role, name)]
                    row[column] = max(row[column], tensor.top - math.log2(look.scale))
    return table - seen[:, None]


def _log2(values: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: Array = np.log2(values)
    return logs
