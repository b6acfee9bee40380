"""Counts of a tensor's exponents, taken from the bits, on the tensor's device."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 256
"""One for each code of float32's exponent: 0 holds zeros and float32's subnormals, 255 infinities and NaN."""

_MANTISSA = 23


def exponents(x: Tensor) -> Tensor:
    """How many elements have each exponent field of float32; field e is the interval [2^(e-127), 2^(e-126)).

    From the bits: `floor(log2(x))` in float32 is wrong just below powers of two, and takes three times as long.
    Shapes: any floating x; the result is (BINS,) int64. Reads nothing on the host.
    """
    fields = _flat(x).view(torch.int32) >> _MANTISSA  # with the sign, which eight bits have no room for
    if x.device.type == "cpu":
        return torch.bincount(fields.to(torch.uint8), minlength=BINS)
    # bincount asks an accelerator for the largest number; histc is told it
    return torch.histc((fields & (BINS - 1)).long(), BINS, min=0, max=BINS)


def sample(x: Tensor, most: int) -> Tensor:
    """At most `most` of x's elements, evenly spread in memory; all of them where x has no more. 1-D.

    The stride is odd, so that it meets every channel and column of tensors whose sides are powers of two.
    """
    flat = in_memory(x)
    if flat.numel() <= most:
        return flat
    return flat[:: -(-flat.numel() // most) | 1]


def largest(x: Tensor) -> Tensor:
    """The largest magnitude, 0-dim float32; NaN where there is a NaN, 0 for no elements. Shapes: any floating x."""
    if not x.numel():
        return torch.zeros((), device=x.device)
    low, high = torch.aminmax(in_memory(x))
    return torch.maximum(-low, high).float()


def in_memory(x: Tensor) -> Tensor:
    """x's elements in the order in which they lie in memory: 1-D, without a copy where x is dense."""
    x = x.detach()
    if x.is_contiguous():
        return x.view(-1)
    dense = x.permute(sorted(range(x.dim()), key=lambda i: x.stride()[i], reverse=True))
    return dense.reshape(-1)


def _flat(x: Tensor) -> Tensor:
    return in_memory(x).to(torch.float32)
