"""Adam, with weight decay in the gradient or apart from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mpt.formats.stored import Storage
from mpt.optim._base import Optimizer, default_eps
from mpt.optim._fused import FusedAdam
from mpt.optim._grouped import by_dtype
from mpt.optim._kernels import AdamKernel
from mpt.optim._torch import TorchOptimizer
from mpt.optim._windows import Windowed

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
    if storage is not None:
        kernel = AdamKernel(betas=betas, eps=eps, weight_decay=weight_decay, decoupled=decoupled)
        return Windowed(params, kernel, moment, storage)
    if fused:
        return by_dtype(
            params,
            lambda group: FusedAdam(group, betas=betas, eps=eps, weight_decay=weight_decay, decoupled=decoupled),
        )
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    both = (betas[0], betas[1])
    return TorchOptimizer(params, make(params, lr=lr, betas=both, eps=eps, weight_decay=weight_decay, foreach=True))
