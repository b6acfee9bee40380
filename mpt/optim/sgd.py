"""Stochastic gradient descent with momentum."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.formats.stored import Storage
from mpt.optim import _kernels
from mpt.optim._base import Optimizer
from mpt.optim._fused import of_kernel
from mpt.optim._torch import TorchOptimizer

FUSED_ON = ("cpu", "cuda")


def build(
    params: list[Tensor],
    *,
    lr: float,
    weight_decay: float,
    moment: str,
    fused: bool,
    storage: Storage | None = None,
    momentum: float = 0.9,
    nesterov: bool = False,
) -> Optimizer:
    """SGD; nesterov needs momentum; with a `storage` it runs window by window."""
    if not 0 <= momentum < 1:
        raise ValueError(f"optimizer.momentum got {momentum}, want 0 ≤ momentum < 1")
    if nesterov and not momentum:
        raise ValueError("optimizer.nesterov needs optimizer.momentum above 0")
    if fused:
        kernel = _kernels.sgd(momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
        return of_kernel(params, kernel, moment, storage)
    inner = torch.optim.SGD(
        params, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, foreach=True
    )
    return TorchOptimizer(params, inner)
