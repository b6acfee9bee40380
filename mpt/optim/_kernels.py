"""torch's fused kernels over lists of tensors: unscaling, clipping and the decision to skip are inside them.

`torch.optim` with fused=True calls the same. They are called without the optimizer class: its `step` reads hooks and
regroups parameters on every call, and imports the compiler on first use (1.4 s of start-up).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Operands(NamedTuple):
    """What one update reads and changes in place: `moments` has a list for each of the kernel's."""

    params: list[Tensor]
    grads: list[Tensor]
    moments: list[list[Tensor]]
    updates: Tensor
    """How many there were, with this one."""


class Kernel(NamedTuple):
    """A fused update.

    `moments` names what it keeps for each parameter and says whether that has a sign; `counts` is whether it needs the
    number of updates. `update(operands, lr, divisor, found)` divides gradients by `divisor` (None: by nothing) and
    changes nothing where `found` is 1.
    """

    moments: dict[str, bool]
    counts: bool
    update: Callable[[Operands, Tensor, Tensor | None, Tensor], None]


def adam(*, betas: Sequence[float], eps: float, weight_decay: float, decoupled: bool) -> Kernel:
    """Adam, or AdamW with decay apart from the gradient."""
    op: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
    fixed = {
        **{"beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay},
        **{"amsgrad": False, "maximize": False},
    }

    def update(x: Operands, lr: Tensor, divisor: Tensor | None, found: Tensor) -> None:
        counts = [x.updates] * len(x.params)
        op(x.params, x.grads, *x.moments, [], counts, lr=lr, grad_scale=divisor, found_inf=found, **fixed)

    return Kernel({"exp_avg": True, "exp_avg_sq": False}, True, update)


def sgd(*, momentum: float, nesterov: bool, weight_decay: float) -> Kernel:
    """Gradient descent, with momentum where asked."""
    op: Any = torch._fused_sgd_
    fixed = {
        **{"weight_decay": weight_decay, "momentum": momentum, "dampening": 0.0, "nesterov": nesterov},
        **{"maximize": False, "is_first_step": False},
    }

    def update(x: Operands, lr: Tensor, divisor: Tensor | None, found: Tensor) -> None:
        kept = x.moments[0] if x.moments else []
        op(x.params, x.grads, kept, lr=lr, grad_scale=divisor, found_inf=found, **fixed)

    return Kernel({"momentum": True} if momentum else {}, False, update)
