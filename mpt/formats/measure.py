"""What a number format would do to a tensor: what overflows, vanishes, loses bits, and how large the error is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mpt.formats.table import NumberFormat, format_of


@dataclass(frozen=True)
class FormatLoss:
    """A tensor against a format, without a scale. Shares are of the finite numbers that are not zero.

    `overflow`: beyond the largest. `underflow`: become zero. `subnormal`: below the smallest normal number, not zero.
    `sqnr_db`: signal over noise of what does not overflow, in decibels; inf where nothing is lost.
    `mean_ulps`, `max_ulps`: errors in units of the last place, at most 0.5 by rounding.
    """

    format: str
    finite: int
    nonzero: int
    overflow: float
    underflow: float
    subnormal: float
    sqnr_db: float
    mean_ulps: float
    max_ulps: float


@torch.no_grad()
def measure(x: Tensor, spec: NumberFormat | str) -> FormatLoss:
    """Round x to the format, to nearest, and compare, in float64. Reads the device once."""
    row = format_of(spec) if isinstance(spec, str) else spec
    wide = x.detach().to(torch.float64)
    wide = wide[wide.isfinite() & (wide != 0)]
    unit = _unit(wide, row)
    free = torch.round(wide / unit) * unit  # as if the format had no upper end
    beyond = free.abs() > row.max
    error = torch.where(beyond, 0.0, free - wide)
    ulps = (error / unit).abs()
    signal = torch.where(beyond, 0.0, wide)
    empty = wide.new_zeros(())
    sums = torch.stack([
        (~x.isfinite()).sum().double(), beyond.sum().double(), (free == 0).sum().double(),
        ((wide.abs() < row.min_normal) & (free != 0)).sum().double(), signal.square().sum(), error.square().sum(),
        ulps.sum(), ulps.max() if wide.numel() else empty,
    ])  # fmt: skip
    return _told(row, x.numel(), wide.numel(), sums.tolist())


def _told(row: NumberFormat, size: int, nonzero: int, sums: list[float]) -> FormatLoss:
    lost, beyond, zero, subnormal, signal, noise, ulps, worst = sums
    of = max(nonzero, 1)
    sqnr = 10 * math.log10(signal / noise) if noise and signal else math.inf
    inside = max(nonzero - int(beyond), 1)
    return FormatLoss(
        row.name, size - int(lost), nonzero, beyond / of, zero / of, subnormal / of, sqnr, ulps / inside, worst
    )


def _unit(x: Tensor, row: NumberFormat) -> Tensor:
    """The last place of a number of x's size, a power of two."""
    exponent = (torch.frexp(x).exponent - 1).clamp(min=row.min_exponent) - row.mantissa_bits
    return torch.ldexp(torch.ones_like(x), exponent)
