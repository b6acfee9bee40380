"""Shared-scale blocks: MX (a power of two for 32 numbers) and NVFP4 (E4M3 for 16, float32 for all)."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.formats.operand import BLOCK, ScaleRule
from mpt.formats.rounding import Rounding, round_saturating_
from mpt.formats.table import NumberFormat, format_of

_EXPONENT, _MANTISSA, _SHIFT = 0x7F800000, 0x7FFFFF, 23
_BIAS = 127
_NAN_SCALE = 255
_E2M1, _E4M3 = format_of("e2m1"), format_of("e4m3")
_SMALLEST_WHOLE = 2.0**-127 / _E4M3.min_normal
"""Its inverse by the smallest block scale is 2^127, which float32 has."""


def in_blocks(x: Tensor, block: int, square: bool) -> tuple[Tensor, tuple[int, ...]]:
    """A view of x as blocks along its last dimension (its last two if square), and the dimensions inside a block.

    Shapes: (…, R, K) to (…, R, K/block, block) or (…, R/block, block, K/block, block).
    """
    if not square:
        return x.reshape(*x.shape[:-1], -1, block), (-1,)
    return x.reshape(*x.shape[:-2], -1, block, x.shape[-1] // block, block), (-3, -1)


def out_of_blocks(blocks: Tensor, square: bool) -> Tensor:
    """The view undone."""
    flat = blocks.flatten(-2)
    return flat.flatten(-3, -2) if square else flat


def largest_in(blocks: Tensor, inside: tuple[int, ...]) -> Tensor:
    """The largest magnitude of each block in float32, NaN where there is one. By codes, which are faster to compare."""
    if blocks.dtype == torch.float32:
        return most(blocks.view(torch.int32) & 0x7FFFFFFF, inside).view(torch.float32)
    codes = most(blocks.view(torch.int16) & 0x7FFF, inside)
    return codes.view(torch.bfloat16).to(torch.float32)


def most(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """`x.amax(dims, keepdim=True)`, reduced in the order of memory: of a transposed view 25 times faster on a CPU."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    back = [order.index(d) for d in range(x.dim())]
    return x.permute(order).amax([back[d] for d in dims], keepdim=True).permute(back)


def mx_exponents(largest: Tensor, row: NumberFormat, rule: ScaleRule) -> Tensor:
    """E8M0 codes (int32, 255 for NaN) of the scales of blocks whose largest magnitudes are given, in float32.

    `floor` is the specification's example, which lets the top of a block saturate; `rceil` rounds largest / max up,
    so that nothing does; `ceil` and `even` round the largest itself up, or to the element's mantissa bits.
    Exponents are taken from the bits: log2 in float32 is wrong just beside powers of two.
    Source: OCP MX 1.0, 6.3; NVIDIA cuBLAS, "1D block quantization" (rceil).
    """
    if rule == "rceil":
        exponent = _ceil_exponent((largest / row.max).view(torch.int32)).clamp(max=2 * _BIAS)
    else:
        code = largest.view(torch.int32)
        if rule == "even":
            code = (code + (1 << (_SHIFT - row.mantissa_bits - 1))) & _EXPONENT
        exponent = _ceil_exponent(code) if rule == "ceil" else code >> _SHIFT
        exponent = (exponent - row.max_exponent).clamp(0, _NAN_SCALE)
    return torch.where(largest.isnan(), _NAN_SCALE, exponent)


def _ceil_exponent(code: Tensor) -> Tensor:
    """Biased exponent of the power of two at or above the number with that code; 2^-127 is subnormal 0x400000."""
    above = (code >> _SHIFT) + ((code & _MANTISSA) > 0)
    return torch.where(code <= 0x400000, 0, above)


def powers(exponents: Tensor) -> Tensor:
    """The float32 numbers that E8M0 codes stand for."""
    code = torch.where(exponents == 0, 0x400000, exponents << _SHIFT)
    return torch.where(exponents == _NAN_SCALE, torch.nan, code.to(torch.int32).view(torch.float32))


def quantise_mx(
    x: Tensor, row: NumberFormat, rule: ScaleRule, *, square: bool = False, rounding: Rounding = "nearest"
) -> tuple[Tensor, Tensor]:
    """Element values and E8M0 codes of float32 or bfloat16 x; their product is x in MX.

    Shapes: x (…, K), K a multiple of 32 (and R too if square); values as x, codes as the view of `in_blocks`.
    A block too small for any scale but the smallest is not scaled, and vanishes: so does it on hardware.
    """
    view, inside = in_blocks(x, BLOCK["mx"], square)
    codes = mx_exponents(largest_in(view, inside), row, rule)
    inverse = powers(2 * _BIAS - codes.clamp(max=2 * _BIAS))
    if rule == "rceil":
        inverse = torch.where(codes == 0, 1.0, inverse)
    inverse = torch.where(codes == _NAN_SCALE, torch.nan, inverse)
    values = round_saturating_(view * inverse.to(x.dtype), row, rounding)
    return values, codes


def mx(
    x: Tensor, row: NumberFormat, rule: ScaleRule, *, square: bool = False, rounding: Rounding = "nearest"
) -> Tensor:
    """x as MX holds it."""
    values, codes = quantise_mx(x, row, rule, square=square, rounding=rounding)
    return out_of_blocks(values.mul_(powers(codes).to(x.dtype)), square)


def quantise_nv(x: Tensor, *, square: bool = False, rounding: Rounding = "nearest") -> tuple[Tensor, Tensor, Tensor]:
    """E2M1 values, E4M3 block scales and the float32 scale of float32 x; their product is x in NVFP4.

    Scales below E4M3's smallest normal number are that.
    Source: NVIDIA, "Pretraining Large Language Models with NVFP4" (2025), and torchao's nvfp4_quantize.
    """
    view, inside = in_blocks(x, BLOCK["nv"], square)
    largest = largest_in(view, inside).to(torch.float32)
    whole = largest.amax() / (_E4M3.max * _E2M1.max)
    # With a smaller one an inverse is infinite, and zeros times it NaN (torchao's are); block scales take its place.
    whole = torch.where(whole == 0, 1.0, whole.clamp(min=_SMALLEST_WHOLE))
    scales = (largest / _E2M1.max) / whole
    scales = round_saturating_(scales.clamp_(min=_E4M3.min_normal, max=_E4M3.max), _E4M3)
    values = round_saturating_(view * ((1.0 / whole) / scales), _E2M1, rounding)
    return values, scales, whole


def nv(x: Tensor, *, square: bool = False, rounding: Rounding = "nearest") -> Tensor:
    """x as NVFP4 holds it."""
    values, scales, whole = quantise_nv(x, square=square, rounding=rounding)
    return out_of_blocks(values.mul_(whole * scales), square)
