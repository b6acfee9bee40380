"""Tensors as they lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def is_dense(x: Tensor) -> bool:
    """Whether its numbers fill a stretch of memory, each at its own place, in some order of its dimensions."""
    if not x.numel():
        return True
    filled = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != filled:
                return False
            filled *= size
    return True


def in_memory_order(x: Tensor) -> Tensor:
    """A view of a dense tensor's numbers as they lie in memory, whatever the order of its dimensions."""
    return x.detach().as_strided((x.numel(),), (1,))


def laid_out_as(x: Tensor, other: Tensor) -> Tensor:
    """`x`, or a copy of it whose numbers lie in the order of those of `other`, which is dense."""
    if x.stride() == other.stride():
        return x
    return torch.empty_like(other, dtype=x.dtype, requires_grad=False).copy_(x)
