"""The global norm of a gradient, without a read of the device and without false infinities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def global_norm(grads: list[Tensor]) -> Tensor:
    """‖grads‖₂ as a 0-dim float32 tensor on their device; non-finite only if an element is.

    A sum of squares in float32 overflows from elements of 1.8e19 on. CUDA accumulates in float64, in
    the same pass. On a CPU that would copy every gradient, so there the float32 result is looked at
    (it lies in host memory: nothing waits) and summed again in float64 only where it overflowed.
    """
    if grads[0].device.type == "cuda":
        return _held(_stacked(grads, torch.float64))
    norm = _stacked(grads, None if _all_float32(grads) else torch.float32)
    if norm.device.type == "cpu" and not math.isfinite(norm.numpy()):
        return _exact(grads)
    return norm


_LARGEST = torch.finfo(torch.float32).max


def _stacked(grads: list[Tensor], dtype: torch.dtype | None) -> Tensor:
    norms = torch._foreach_norm(grads, 2, dtype) if dtype else torch._foreach_norm(grads)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def _all_float32(grads: Sequence[Tensor]) -> bool:
    return all(g.dtype is torch.float32 for g in grads)


def _exact(grads: Sequence[Tensor]) -> Tensor:
    return _held(torch.stack([torch.linalg.vector_norm(g.double()) for g in grads]).norm())


def _held(total: Tensor) -> Tensor:
    """A float64 norm in float32: at its largest number where a finite norm passes that; inf and NaN stay."""
    return torch.where(total.isfinite(), total.clamp_max(_LARGEST), total).float()
