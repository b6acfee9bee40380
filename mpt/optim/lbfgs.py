"""L-BFGS: several evaluations of the loss in one update."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.optim._base import Optimizer
from mpt.optim._torch import ClosureOptimizer


def build(
    params: list[Tensor],
    *,
    lr: float,
    weight_decay: float,
    moment: str,
    fused: bool,
    max_iter: int = 5,
    history_size: int = 10,
    line_search: str | None = "strong_wolfe",
) -> Optimizer:
    """torch's L-BFGS on one window's batches; weight decay does not exist in it."""
    if weight_decay:
        raise ValueError(f"optimizer.weight_decay got {weight_decay}, want 0: L-BFGS has no weight decay")
    inner = torch.optim.LBFGS(params, lr=lr, max_iter=max_iter, history_size=history_size, line_search_fn=line_search)
    return ClosureOptimizer(params, inner)
