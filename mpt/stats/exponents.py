"""What a number format would lose of a tensor, from the counts of its exponents: for any format and any scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mpt.formats.table import NumberFormat, format_of

Array = NDArray[np.float64]

BINS = 256
_BIAS = 127
_INFINITE = BINS - 1
_LOWEST, _SUBNORMAL = -149.0, -126.0
"""log2 of float32's smallest number and of its smallest normal one: the ends of bin 0."""

_FLOORS = np.concatenate([[_LOWEST], np.arange(1, BINS) - float(_BIAS)])
_CEILINGS = np.concatenate([[_SUBNORMAL], np.arange(1, BINS) - float(_BIAS) + 1])


@dataclass(frozen=True)
class Loss:
    """What a format loses of finite numbers that are not zero, as shares of them.

    `overflow`: beyond the largest; `underflow`: become zero; `subnormal`: below the smallest normal number, not zero.
    Numbers of a bin that a limit cuts are taken as spread evenly over its logarithm; `uncertain` is the share that
    lies in such bins of the first two: 0 where no limit of them cuts a bin that holds something. A magnitude of exactly
    half the smallest number, a tie that rounds to zero, is taken as kept.
    """

    overflow: float
    underflow: float
    subnormal: float
    uncertain: float

    @property
    def lost(self) -> float:
        """The share that is zero or infinite in the format."""
        return self.overflow + self.underflow


@dataclass(frozen=True, eq=False)
class Exponents:
    """Counts by exponent of `counted` elements out of `size`: bin i holds 2^(i-127) to below twice that.

    Bin 0 holds float32's subnormals, without the `zeros`. `amax` is the largest magnitude of all, None where it is not
    known or not finite.
    """

    counts: Array
    zeros: float
    nonfinite: float
    size: float
    amax: float | None = None

    @cached_property
    def some(self) -> float:
        """Finite elements that are not zero."""
        return float(self.counts.sum())

    @property
    def counted(self) -> float:
        return self.some + self.zeros + self.nonfinite

    @cached_property
    def top(self) -> float | None:
        """log2 of the largest finite magnitude: of `amax`, else the upper end of the highest bin that holds any."""
        if self.amax:
            return math.log2(self.amax)
        held = np.flatnonzero(self.counts)
        return float(_CEILINGS[held[-1]]) if len(held) else None

    @cached_property
    def mean(self) -> float | None:
        """Mean log2 of the magnitudes that are finite and not zero, each taken in the middle of its bin."""
        return float((self.counts * (_FLOORS + _CEILINGS)).sum() / 2 / self.some) if self.some else None

    def loss(self, spec: NumberFormat | str, scale: float = 1.0) -> Loss:
        """What the format loses of these numbers times `scale`, rounding to nearest."""
        row = format_of(spec) if isinstance(spec, str) else spec
        if not self.some:
            return Loss(0.0, 0.0, 0.0, 0.0)
        shift = math.log2(scale)
        over, under = overflow_log2(row) - shift, underflow_log2(row) - shift
        beyond, kept = self._above(over), self._above(under)
        normal = min(kept, self._above(row.min_exponent - shift))
        uncertain = self._cut(over) + self._cut(under)
        return Loss(beyond / self.some, 1 - kept / self.some, (kept - normal) / self.some, uncertain / self.some)

    def block_underflow(self, spec: NumberFormat | str, block: int) -> float:
        """The share that becomes 0 where each `block` of numbers is scaled to the format's largest by its own largest.

        Blocks are taken to be drawn at random from these numbers: those of a real tensor are more alike, and lose less.
        """
        row = format_of(spec) if isinstance(spec, str) else spec
        if not self.some:
            return 0.0
        held = np.cumsum(self.counts) + self.zeros
        below = (held / held[-1]) ** block
        largest = np.diff(below, prepend=(self.zeros / held[-1]) ** block)  # that of a block is in this bin
        reach = math.log2(row.max) - underflow_log2(row)
        some = np.flatnonzero(largest > 0)
        gone = np.array([self.some - self._above(top - reach) for top in (_FLOORS + _CEILINGS)[some] / 2])
        return float((largest[some] * np.minimum(gone / np.maximum(held - self.zeros, 1.0)[some], 1.0)).sum())

    def headroom_bits(self, spec: NumberFormat | str, scale: float = 1.0) -> float | None:
        """By how many powers of two the largest could grow before it overflows; negative where it does."""
        row = format_of(spec) if isinstance(spec, str) else spec
        return None if self.top is None else overflow_log2(row) - math.log2(scale) - self.top

    def shifted(self, bits: int) -> Exponents:
        """These numbers times 2^bits; what leaves the bins that there are is kept in the last one on that side."""
        places = np.clip(np.arange(BINS) + bits, 0, _INFINITE - 1)
        counts = np.zeros(BINS)
        np.add.at(counts, places, self.counts)
        amax = None if self.amax is None else self.amax * 2.0**bits
        return Exponents(counts, self.zeros, self.nonfinite, self.size, amax)

    def _above(self, log2: float) -> float:
        """Numbers of at least 2^log2."""
        top = np.minimum(_CEILINGS, max(self.top or 0.0, _LOWEST)) if self.amax else _CEILINGS
        width = np.maximum(top - _FLOORS, 2.0**-24)
        return float((self.counts * np.where(log2 <= _FLOORS, 1.0, np.clip((top - log2) / width, 0.0, 1.0))).sum())

    def _cut(self, log2: float) -> float:
        """Numbers in the bin that 2^log2 lies inside of."""
        inside = (log2 > _FLOORS) & (log2 < _CEILINGS)
        return float(self.counts[inside].sum())


def overflow_log2(row: NumberFormat) -> float:
    """log2 of the magnitude from which on rounding to nearest goes past the largest number."""
    last_place = 2.0 ** (row.max_exponent - row.mantissa_bits)
    return math.log2(row.max + last_place / 2)


def underflow_log2(row: NumberFormat) -> float:
    """log2 of the magnitude up to which rounding to nearest gives zero."""
    return float(row.min_exponent - row.mantissa_bits - 1)


def merged(parts: Iterable[Exponents]) -> Exponents:
    """All parts as one tensor; each weighs as its size, however few of its elements were counted."""
    known = [p for p in parts if p.counted]
    weights = [p.size / p.counted for p in known]
    amax = [p.amax for p in known]
    return Exponents(
        counts=np.sum([w * p.counts for w, p in zip(weights, known, strict=True)], axis=0) if known else np.zeros(BINS),
        zeros=sum(w * p.zeros for w, p in zip(weights, known, strict=True)),
        nonfinite=sum(w * p.nonfinite for w, p in zip(weights, known, strict=True)),
        size=sum(p.size for p in known),
        amax=max(a for a in amax if a is not None) if amax and None not in amax else None,
    )


def bounds_log2(row: NumberFormat) -> tuple[float, float, float]:
    """log2 of a format's smallest number, smallest normal number, and the power of two above its largest."""
    return float(row.min_exponent - row.mantissa_bits), float(row.min_exponent), float(row.max_exponent + 1)
