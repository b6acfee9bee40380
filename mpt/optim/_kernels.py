"""torch's fused kernels over lists of float32 tensors, as `_windows` calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class AdamKernel:
    """Adam, or AdamW with decay apart from the gradient."""

    signed: tuple[bool, ...] = (True, False)

    def __init__(self, *, betas: Sequence[float], eps: float, weight_decay: float, decoupled: bool) -> None:
        self._op: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self._fixed = {
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": False,
            "maximize": False,
        }

    def __call__(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        moments: list[list[Tensor]],
        count: Tensor,
        lr: Tensor,
        divisor: Tensor | None,
        found: Tensor,
    ) -> None:
        counts = [count] * len(params)
        self._op(params, grads, *moments, [], counts, lr=lr, grad_scale=divisor, found_inf=found, **self._fixed)


class SgdKernel:
    """Gradient descent, with momentum where asked."""

    def __init__(self, *, momentum: float, nesterov: bool, weight_decay: float) -> None:
        self.signed: tuple[bool, ...] = (True,) if momentum else ()
        self._fixed = {
            "weight_decay": weight_decay,
            "momentum": momentum,
            "dampening": 0.0,
            "nesterov": nesterov,
            "maximize": False,
            "is_first_step": False,
        }

    def __call__(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        moments: list[list[Tensor]],
        count: Tensor,
        lr: Tensor,
        divisor: Tensor | None,
        found: Tensor,
    ) -> None:
        momentum = moments[0] if moments else []
        torch._fused_sgd_(  # type: ignore[call-overload]
            params, grads, momentum, lr=lr, grad_scale=divisor, found_inf=found, **self._fixed
        )
