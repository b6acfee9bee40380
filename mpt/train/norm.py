"""The global norm of a gradient, without a read of the device and without false infinities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def norms(grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    """‖grads‖₂ (0-dim float32) and each tensor's own norm (1-D), on their device; non-finite only if an element is.

    A sum of squares in float32 overflows from elements of 1.8e19 on. CUDA accumulates in float64, in
    the same pass. On a CPU that would copy every gradient, so there the float32 result is looked at
    (it lies in host memory: nothing waits) and tensors are summed again in float64 only where squares overflowed.
    """
    if grads[0].device.type == "cuda":
        parts = torch.stack(torch._foreach_norm(grads, 2, torch.float64))
        return _held(parts.norm()), parts
    each = torch._foreach_norm(grads) if _all_float32(grads) else torch._foreach_norm(grads, 2, torch.float32)
    parts = torch.stack(each)
    norm: Tensor = torch.linalg.vector_norm(parts)
    if norm.device.type == "cpu" and not math.isfinite(norm.numpy()):
        parts = torch.stack([_wide(g, part) for g, part in zip(grads, each, strict=True)])
        return _held(parts.norm()), parts
    return norm, parts


def _wide(grad: Tensor, norm: Tensor) -> Tensor:
    """Its norm in float64, given that in float32: a copy in float64 is made of finite numbers alone, so that a skipped
    step holds no more than another."""
    if math.isfinite(norm.numpy()):
        return norm.double()
    largest = torch.linalg.vector_norm(grad, math.inf)
    if not math.isfinite(largest.float().numpy()):
        return norm.double()
    wide: Tensor = torch.linalg.vector_norm(grad.double())
    return wide


_LARGEST = torch.finfo(torch.float32).max


def _all_float32(grads: Sequence[Tensor]) -> bool:
    return all(g.dtype is torch.float32 for g in grads)


def _held(total: Tensor) -> Tensor:
    """A float64 norm in float32: at its largest number where a finite norm passes that; inf and NaN stay."""
    return torch.where(total.isfinite(), total.clamp_max(_LARGEST), total).float()
