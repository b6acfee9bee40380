"""A tensor as an operand of a low-bit product: rounded with its scale, and multiplied back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mpt.formats.blocks import in_blocks, most, mx, nv, out_of_blocks
from mpt.formats.operand import Operand
from mpt.formats.rounding import round_saturating_

_SMALLEST_AMAX = 1e-12
"""Where float8 scales stop to grow: torchao's, below every gradient that matters."""
_POWER = 0x7F800000


def quantise(x: Tensor, op: Operand, amax: Tensor | None = None) -> Tensor:
    """What the format and scale of `op` make of x, in float32; blocks lie along the last dimension.

    A last block that is not full is filled up with zeros. `amax` is the largest magnitude that a delayed scale
    expects; what lies beyond saturates.
    Shapes: x (…, R, K) floating; the result is as x.
    """
    wide = x.to(torch.float32)
    if op.block is None:
        return _whole(wide, op, amax)
    padded = _filled(wide, op.block, op.square)
    if op.scale == "mx":
        out = mx(padded, op.row, op.rule, square=op.square, rounding=op.rounding)
    elif op.scale == "nv":
        out = nv(padded, square=op.square, rounding=op.rounding)
    else:
        view, inside = in_blocks(padded, op.block, op.square)
        out = out_of_blocks(_scaled(view, most(view.abs(), inside), op), op.square)
    return out if padded is wide else out[..., : x.shape[-2], : x.shape[-1]]


def largest_of(op: Operand) -> float:
    """The largest number before scaling."""
    bits = op.integer_bits
    return op.row.max if bits is None else float(2 ** (bits - 1) - 1)


def _whole(x: Tensor, op: Operand, amax: Tensor | None) -> Tensor:
    if op.scale == "none":
        return round_saturating_(x.clone(), op.row, op.rounding)
    if op.scale == "row":
        amax = most(x.abs(), (-1,))
    elif amax is None or op.scale == "tensor":
        amax = x.abs().amax()
    return _scaled(x, amax, op)


def _scaled(x: Tensor, amax: Tensor, op: Operand) -> Tensor:
    """float8 as torchao scales it: by largest / amax, divided in float64 and rounded once."""
    largest = largest_of(op)
    scale = (largest / amax.to(torch.float64).clamp(min=_SMALLEST_AMAX)).to(torch.float32)
    if op.pow2:
        scale = (scale.view(torch.int32) & _POWER).view(torch.float32)
    y = x * scale
    if op.integer_bits is None:
        return round_saturating_(y, op.row, op.rounding).div_(scale)
    return _integers_(y, op).clamp_(-largest, largest).div_(scale)


def _integers_(y: Tensor, op: Operand) -> Tensor:
    if op.rounding == "stochastic":
        return y.add_(torch.rand_like(y)).floor_()
    return y.round_() if op.rounding == "nearest" else y.trunc_()


def _filled(x: Tensor, block: int, square: bool) -> Tensor:
    columns, rows = -x.shape[-1] % block, -x.shape[-2] % block if square else 0
    return F.pad(x, (0, columns, 0, rows)) if columns or rows else x
