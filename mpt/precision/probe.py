"""A proof, by products that only enough mantissa bits get right, of what a device multiplies float32 operands as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpt.formats.rounding import round_to
from mpt.formats.table import format_of

_SIZE = 32
_WIDER = {"bfloat16": "tfloat32", "tfloat32": "float32"}

_Product = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def probe(device: str) -> dict[str, dict[str, Any]]:
    """For matmul and conv on that device, with the switches as they stand: the format multiplied in, by its error.

    Operands are just under half a unit above 1 in a narrower format, which would round all of them to 1, so that
    errors can't cancel: float32 is right within `bound`, what rounding n operands and n sums may cost; TF32 is off
    by 2^-12 or more. `format` is the widest that the worst error allows, `bfloat16` standing for it or anything less.
    """
    return {"matmul": proof(device), "conv": _proof(_as_convolution, device)}


@torch.no_grad()
def proof(device: str) -> dict[str, Any]:
    """The same for matmul alone."""
    return _proof(torch.matmul, device)


def _proof(multiply: _Product, device: str) -> dict[str, Any]:
    bound = 2 * _SIZE * format_of("float32").unit_roundoff
    errors = {narrower: _error(multiply, _just_above_one(narrower), device) for narrower in _WIDER}
    failed = [narrower for narrower, error in errors.items() if not error <= bound]
    return {
        "format": failed[0] if failed else "float32",
        "relative_error": max(errors.values()),
        "bound": bound,
    }


def _just_above_one(narrower: str) -> Tensor:
    """Numbers above 1 that the next wider format holds and this one rounds to 1: 1/4 to 1/2 of its unit away."""
    unit = 2.0 ** -format_of(narrower).mantissa_bits
    steps = torch.linspace(0.25, 0.49, _SIZE * _SIZE, dtype=torch.float64).reshape(_SIZE, _SIZE)
    return round_to(1 + unit * steps, _WIDER[narrower]).float()


def _error(multiply: _Product, left: Tensor, device: str) -> float:
    right = (2.0 ** (torch.arange(_SIZE * _SIZE) % 3)).reshape(_SIZE, _SIZE)
    exact = left.double() @ right.double()
    got = multiply(left.to(device), right.to(device)).cpu().double()
    return float(((got - exact) / exact).abs().max())


def _as_convolution(left: Tensor, right: Tensor) -> Tensor:
    """The same product as a convolution of images of one pixel."""
    images = left.reshape(_SIZE, _SIZE, 1, 1)
    return torch.nn.functional.conv2d(images, right.t().reshape(_SIZE, _SIZE, 1, 1)).reshape(_SIZE, _SIZE)
