"""Rounding to a number format; the result keeps the dtype of what came in."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mpt.errors import PrecisionError, Problem
from mpt.formats.table import NumberFormat, format_of

Overflow = Literal["ieee", "saturate"]
Rounding = Literal["nearest", "stochastic", "zero"]

_FLOAT32_MANTISSA = format_of("float32").mantissa_bits
_FLOAT32_BIAS = format_of("float32").bias
_CODES = {torch.float32: (23, torch.int32), torch.bfloat16: (7, torch.int16)}
"""Mantissa bits, which lie below the exponent, and integers of the same width."""
_BITS = {dtype: mantissa for dtype, (mantissa, _) in _CODES.items()}
_INFINITY = float("inf")


def round_to(
    x: Tensor, spec: NumberFormat | str, overflow: Overflow = "ieee", rounding: Rounding = "nearest"
) -> Tensor:
    """Round x to `spec`: to the nearest with ties to even, toward zero, or stochastically.

    What rounds past the largest number becomes inf (NaN where `spec` has no inf; the largest number where it has
    neither) with `overflow="ieee"`, and the largest number, inf too, with `saturate`. NaN stays NaN, the signs of
    zeros are kept. Stochastic: up with the probability of the distance from below, by 16 bits of torch's generator.
    Shapes: any; the result has x's shape and dtype, and values that are representable in both.
    Raises: PrecisionError if x is not floating.
    Source: IEEE 754-2019, 4.3; checked against ml_dtypes and float64 in tests/unit/test_formats.py.
    """
    row = format_of(spec) if isinstance(spec, str) else spec
    if not x.is_floating_point():
        raise PrecisionError(Problem("round_to", f"got a tensor of {x.dtype}", "give a floating tensor"))
    if not row.signed:
        return _round_to_power(x, row, overflow)
    plain = rounding == "nearest" and overflow == "ieee" and x.dtype == torch.float32
    if plain and row.name in ("float32", "float16", "bfloat16"):
        return x.to(storage_dtype(row)).to(x.dtype)
    if plain and row.specials == "ieee" and row.exponent_bits == format_of("float32").exponent_bits:
        return _drop_mantissa(x, _FLOAT32_MANTISSA - row.mantissa_bits)
    if x.dtype == torch.float64 or row.exponent_bits > 5:
        return _round_wide(x, row, overflow, rounding)
    narrow = x.to(torch.float32, copy=True, memory_format=torch.preserve_format)
    return _round_narrow_(narrow, row, overflow, rounding).to(x.dtype)


def storage_dtype(spec: NumberFormat | str) -> torch.dtype:
    """The torch dtype whose tensors hold values of that format (float32 where torch has none)."""
    row = format_of(spec) if isinstance(spec, str) else spec
    dtype = getattr(torch, row.storage)
    assert isinstance(dtype, torch.dtype), row
    return dtype


def round_tfloat32(x: Tensor) -> Tensor:
    """Round a float32 tensor to ten mantissa bits, ties to even; the fast path of TF32's emulation."""
    return _drop_mantissa(x, _FLOAT32_MANTISSA - format_of("tfloat32").mantissa_bits)


def round_saturating_(x: Tensor, row: NumberFormat, rounding: Rounding = "nearest") -> Tensor:
    """Round a float32 tensor in place to a format of at most 5 exponent bits; what lies past the largest becomes it.

    A bfloat16 tensor will do for a format of fewer mantissa bits, and takes less than half the time.
    """
    if rounding == "nearest" and row.mantissa_bits < _BITS[x.dtype] - 1:
        return _round_by_adding_(x, row)
    return _round_narrow_(x, row, "saturate", rounding)


def _round_by_adding_(x: Tensor, row: NumberFormat) -> Tensor:
    """In two thirds of the passes of `_round_narrow_`: 1.5 · 2^p units are added and taken away again, p being x's own
    stored mantissa bits. In between the last bit is a unit, so that the addition rounds, and as even as x was.
    """
    low, integers = _CODES[x.dtype]
    x.clamp_(-row.max, row.max)
    code = x.view(integers)
    sign = code & torch.iinfo(integers).min
    exponent = code & (0xFF << low)
    exponent.clamp_(min=(row.min_exponent + _FLOAT32_BIAS) << low)
    anchor = exponent.add_(((low - row.mantissa_bits) << low) + (1 << (low - 1))).view(x.dtype)
    x.add_(anchor).sub_(anchor)
    code |= sign  # of what became zero
    return x


def _drop_mantissa(x: Tensor, bits: int) -> Tensor:
    """Round a float32 tensor to 23 - `bits` mantissa bits by integer arithmetic on its codes.

    Adding half a unit, less one where the kept part is even, carries into the exponent as rounding up should,
    past the largest number to the code of inf; subnormals need no case of their own.
    """
    if bits == 0:
        return x.clone()
    code = x.view(torch.int32)
    out = code >> bits
    out &= 1
    out += code
    out += (1 << (bits - 1)) - 1
    out &= -(1 << bits)
    rounded = out.view(torch.float32)
    return torch.where(x.isnan(), x, rounded)


def _round_narrow_(x: Tensor, row: NumberFormat, overflow: Overflow, rounding: Rounding) -> Tensor:
    """In place, for a float32 or bfloat16 x and a row whose exponents lie well within theirs.

    The unit of the last kept bit and its inverse, powers of two, are put together from the exponent's bits, so that
    scaling by them is exact on every device. Two units past the largest is as good as any number past it.
    """
    bound = row.max if overflow == "saturate" else 2.0 ** (row.max_exponent + 2)
    beyond = x.isinf() if overflow == "ieee" else None
    x.clamp_(-bound, bound)
    low, integers = _CODES[x.dtype]
    exponent = x.view(integers) & (0xFF << low)
    exponent.clamp_(min=(row.min_exponent + _FLOAT32_BIAS) << low)
    shift = row.mantissa_bits << low
    inverse = ((2 * _FLOAT32_BIAS << low) - exponent).add_(shift)
    unit = exponent.sub_(shift).view(x.dtype)
    x = _integer(x.mul_(inverse.view(x.dtype)), rounding).mul_(unit)
    if beyond is None:
        return x
    return _overflowed(torch.where(beyond, torch.copysign(x.new_tensor(_INFINITY), x), x), row, overflow, rounding)


def _integer(x: Tensor, rounding: Rounding) -> Tensor:
    """Round to an integer, in place or in a new tensor; the sign of a zero is kept."""
    if rounding == "nearest":
        return x.round_()
    if rounding == "zero":
        return x.trunc_()
    below = x.floor()
    # 1 where the draw is less than the distance from below, else 0: a comparison's booleans would cost thrice as much
    up = (x - below).sub_(_draws(x)).ceil_()
    return torch.copysign(below.add_(up), x)


def _draws(x: Tensor) -> Tensor:
    """Odd multiples of 2^-17 between 0 and 1, of x's shape: four from each number of 64 bits, which is the cost."""
    words = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),), dtype=torch.int64, device=x.device)
    return words.view(torch.int16)[: x.numel()].view(x.shape).to(torch.float32).add_(32768.5).mul_(2.0**-16)


def _round_wide(x: Tensor, row: NumberFormat, overflow: Overflow, rounding: Rounding) -> Tensor:
    """The same by float64 arithmetic, for any row and dtype: scale the last kept bit to 1, round, scale back."""
    wide = x.to(torch.float64)
    exponent = torch.frexp(wide).exponent - 1
    quantum = exponent.clamp(min=row.min_exponent) - row.mantissa_bits
    unit = ((quantum.to(torch.int64) + 1023) << 52).view(torch.float64)
    rounded = _integer(wide / unit, rounding) * unit
    rounded = torch.where(wide.isfinite(), rounded, wide)
    return _overflowed(rounded, row, overflow, rounding).to(x.dtype)


def _overflowed(rounded: Tensor, row: NumberFormat, overflow: Overflow, rounding: Rounding) -> Tensor:
    """What became larger than the largest: inf or NaN, or the largest, to which rounding toward zero leads too."""
    if overflow == "saturate" or row.specials == "none":
        return rounded.clamp(-row.max, row.max)
    if rounding == "zero":
        rounded = torch.where(rounded.isinf(), rounded, rounded.clamp(-row.max, row.max))
    special = _INFINITY if row.specials == "ieee" else float("nan")
    return torch.where(rounded.abs() > row.max, torch.copysign(rounded.new_tensor(special), rounded), rounded)


def _round_to_power(x: Tensor, row: NumberFormat, overflow: Overflow) -> Tensor:
    """To the nearest power of two, halfway up; below the smallest it is the smallest. Zero and less are NaN: there is
    no code for them. 2^-127 is float32's subnormal 0x400000; all above it become 2^-126, as in torch and ml_dtypes.
    """
    code = x.to(torch.float32).view(torch.int32)
    exponent = ((code + 0x400000) >> _FLOAT32_MANTISSA).to(torch.int64)
    exponent = torch.where(code <= 0x400000, 0, exponent) - _FLOAT32_BIAS
    wide = ((exponent + 1023) << 52).view(torch.float64)
    top = row.max if overflow == "saturate" else float("nan")
    wide = torch.where(wide > row.max, torch.full_like(wide, top), wide)
    return torch.where(x > 0, wide, torch.full_like(wide, float("nan"))).to(x.dtype)
