"""Adagrad (Duchi et al. 2011)."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.optim._base import Optimizer, default_eps
from mpt.optim._torch import TorchOptimizer


def build(
    params: list[Tensor], *, lr: float, weight_decay: float, moment: str, fused: bool, eps: float | None = None
) -> Optimizer:
    """torch's Adagrad, without a fused kernel (torch has one for CPUs only).

    `eps` None takes the moment format's own.
    """
    eps = default_eps(moment, usual=1e-10) if eps is None else eps
    return TorchOptimizer(params, torch.optim.Adagrad(params, lr=lr, eps=eps, weight_decay=weight_decay, foreach=True))
