"""RMSprop (Hinton 2012)."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.optim._base import Optimizer, default_eps
from mpt.optim._torch import TorchOptimizer


def build(
    params: list[Tensor],
    *,
    lr: float,
    weight_decay: float,
    moment: str,
    fused: bool,
    alpha: float = 0.99,
    eps: float | None = None,
    momentum: float = 0.0,
) -> Optimizer:
    """torch's RMSprop, which has no fused kernel; `eps` None takes the moment format's own."""
    eps = default_eps(moment) if eps is None else eps
    inner = torch.optim.RMSprop(
        params, lr=lr, alpha=alpha, eps=eps, momentum=momentum, weight_decay=weight_decay, foreach=True
    )
    return TorchOptimizer(params, inner)
