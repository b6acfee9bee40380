"""RMSprop (Hinton 2012)."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.optim._base import Optimizer
from mpt.optim._torch import TorchOptimizer


def build(
    params: list[Tensor],
    *,
    lr: float,
    weight_decay: float,
    moment: str,
    fused: bool,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
) -> Optimizer:
    """torch's RMSprop; it has no fused kernel."""
    inner = torch.optim.RMSprop(
        params, lr=lr, alpha=alpha, eps=eps, momentum=momentum, weight_decay=weight_decay, foreach=True
    )
    return TorchOptimizer(params, inner)
