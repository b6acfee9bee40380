"""Adam, with weight decay in the gradient or apart from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mpt.formats.stored import Storage
from mpt.optim import _kernels
from mpt.optim._base import Optimizer, default_eps
from mpt.optim._fused import of_kernel
from mpt.optim._torch import TorchOptimizer

FUSED_ON = ("cpu", "cuda")


def build_adam(
    params: list[Tensor],
    *,
    decoupled: bool,
    lr: float,
    weight_decay: float,
    moment: str,
    fused: bool,
    storage: Storage | None = None,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float | None = None,
) -> Optimizer:
    """Adam or AdamW; `eps` None takes the moment format's own; with a `storage` it runs window by window."""
    eps = default_eps(moment) if eps is None else eps
    if fused:
        kernel = _kernels.adam(betas=betas, eps=eps, weight_decay=weight_decay, decoupled=decoupled)
        return of_kernel(params, kernel, moment, storage)
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    both = (betas[0], betas[1])
    return TorchOptimizer(params, make(params, lr=lr, betas=both, eps=eps, weight_decay=weight_decay, foreach=True))
