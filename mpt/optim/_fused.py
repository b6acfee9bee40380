"""One kernel for all parameters, with unscaling, clipping and the decision to skip inside it.

The kernels are torch's own (`torch.optim` with fused=True calls the same). They are called without the
optimizer class: its `step` reads hooks and regroups parameters on every call, and imports the compiler
on first use (1.4 s of start-up). State is allocated once, so a first step that is skipped leaves zeros,
where torch's SGD leaves uninitialised momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mpt.optim._base import copy_lists, pairs


class FusedAdam:
    """Adam (or AdamW, with decay apart from the gradient) in one kernel."""

    reads_device = False
    by_closure = False

    def __init__(
        self, params: list[Tensor], *, betas: Sequence[float], eps: float, weight_decay: float, decoupled: bool
    ) -> None:
        self.params = params
        self._op: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self._first = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in params]
        self._second = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in params]
        self._count = torch.zeros((), dtype=torch.float32, device=params[0].device)
        self._counts = [self._count] * len(params)
        self._fixed = {
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": False,
            "maximize": False,
        }

    def step(self, grads: list[Tensor | None], lr: Tensor, divisor: Tensor | None, found: Tensor) -> None:
        params, first, second, counts = self.params, self._first, self._second, self._counts
        if any(g is None for g in grads):  # `None in grads` would compare element by element: 10 µs a tensor
            have = pairs(params, grads)
            params, grads = [params[i] for i in have], [grads[i] for i in have]
            first, second, counts = [first[i] for i in have], [second[i] for i in have], counts[: len(have)]
        self._count.add_(1)
        self._op(params, grads, first, second, [], counts, lr=lr, grad_scale=divisor, found_inf=found, **self._fixed)
        self._count.sub_(found)

    def reset(self) -> None:
        torch._foreach_zero_(self.state_tensors())

    def state_tensors(self) -> list[Tensor]:
        return [*self._first, *self._second, self._count]

    def state_dict(self) -> dict[str, Any]:
        return {"exp_avg": self._first, "exp_avg_sq": self._second, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        copy_lists(self._first, state["exp_avg"])
        copy_lists(self._second, state["exp_avg_sq"])
        copy_lists([self._count], [state["count"]])


class FusedSGD:
    """Gradient descent, with momentum where asked, in one kernel."""

    reads_device = False
    by_closure = False

    def __init__(self, params: list[Tensor], *, momentum: float, nesterov: bool, weight_decay: float) -> None:
        self.params = params
        # zero momentum buffers make the first step like every other: 0 · momentum + gradient
        self._momentum = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in params] if momentum else []
        self._fixed = {
            "weight_decay": weight_decay,
            "momentum": momentum,
            "dampening": 0.0,
            "nesterov": nesterov,
            "maximize": False,
            "is_first_step": False,
        }

    def step(self, grads: list[Tensor | None], lr: Tensor, divisor: Tensor | None, found: Tensor) -> None:
        params, momentum = self.params, self._momentum
        if any(g is None for g in grads):  # `None in grads` would compare element by element: 10 µs a tensor
            have = pairs(params, grads)
            params, grads = [params[i] for i in have], [grads[i] for i in have]
            momentum = [momentum[i] for i in have] if momentum else []
        torch._fused_sgd_(  # type: ignore[call-overload]
            params, grads, momentum, lr=lr, grad_scale=divisor, found_inf=found, **self._fixed
        )

    def reset(self) -> None:
        for buffer in self._momentum:
            buffer.zero_()

    def state_tensors(self) -> list[Tensor]:
        return list(self._momentum)

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": self._momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        copy_lists(self._momentum, state["momentum"])
