"""Rounding to a number format, ties to even; the result keeps the dtype of what came in."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mpt.errors import PrecisionError, Problem
from mpt.formats.table import NumberFormat, format_of

Overflow = Literal["ieee", "saturate"]

_FLOAT32_MANTISSA = format_of("float32").mantissa_bits


def round_to(x: Tensor, spec: NumberFormat | str, overflow: Overflow = "ieee") -> Tensor:
    """Round x to `spec`, ties to even.

    What rounds past the largest number becomes inf (NaN where `spec` has no inf) with `overflow="ieee"`, and the
    largest number, inf too, with `saturate`. NaN stays NaN; the signs of zeros are kept.
    Shapes: any; the result has x's shape and dtype, and values that are representable in both.
    Raises: PrecisionError if x is not floating.
    Source: IEEE 754-2019, 4.3.1; checked against ml_dtypes and float64 in tests/unit/test_formats.py.
    """
    row = format_of(spec) if isinstance(spec, str) else spec
    if not x.is_floating_point():
        raise PrecisionError(Problem("round_to", f"got a tensor of {x.dtype}", "give a floating tensor"))
    if overflow == "ieee" and x.dtype == torch.float32:
        if row.name in ("float32", "float16", "bfloat16"):
            return x.to(storage_dtype(row)).to(x.dtype)
        if row.specials == "ieee" and row.exponent_bits == format_of("float32").exponent_bits:
            return _drop_mantissa(x, _FLOAT32_MANTISSA - row.mantissa_bits)
    return _round_scaled(x, row, overflow)


def storage_dtype(spec: NumberFormat | str) -> torch.dtype:
    """The torch dtype whose tensors hold values of that format (float32 for TF32)."""
    row = format_of(spec) if isinstance(spec, str) else spec
    dtype = getattr(torch, row.storage)
    assert isinstance(dtype, torch.dtype), row
    return dtype


def round_tfloat32(x: Tensor) -> Tensor:
    """Round a float32 tensor to ten mantissa bits, ties to even; the fast path of TF32's emulation."""
    return _drop_mantissa(x, _FLOAT32_MANTISSA - format_of("tfloat32").mantissa_bits)


def _drop_mantissa(x: Tensor, bits: int) -> Tensor:
    """Round a float32 tensor to 23 - `bits` mantissa bits by integer arithmetic on its codes.

    Adding half a unit, less one where the kept part is even, carries into the exponent as rounding up should,
    past the largest number to the code of inf; subnormals need no case of their own.
    """
    code = x.view(torch.int32)
    out = code >> bits
    out &= 1
    out += code
    out += (1 << (bits - 1)) - 1
    out &= -(1 << bits)
    rounded = out.view(torch.float32)
    return torch.where(x.isnan(), x, rounded)


def _round_scaled(x: Tensor, row: NumberFormat, overflow: Overflow) -> Tensor:
    """The same by float64 arithmetic, for any row and dtype: scale the last kept bit to 1, round, scale back.

    The unit, a power of two, is put together from its bits: exact on every device.
    """
    wide = x.to(torch.float64)
    exponent = torch.frexp(wide).exponent - 1
    quantum = exponent.clamp(min=row.min_exponent) - row.mantissa_bits
    unit = ((quantum.to(torch.int64) + 1023) << 52).view(torch.float64)
    rounded = torch.round(wide / unit) * unit
    rounded = torch.where(wide.isfinite(), rounded, wide)
    return _overflowed(rounded, row, overflow).to(x.dtype)


def _overflowed(rounded: Tensor, row: NumberFormat, overflow: Overflow) -> Tensor:
    if overflow == "saturate":
        return rounded.clamp(-row.max, row.max)
    beyond = rounded.abs() > row.max
    special = float("inf") if row.specials == "ieee" else float("nan")
    return torch.where(beyond, torch.copysign(torch.full_like(rounded, special), rounded), rounded)
