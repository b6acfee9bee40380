"""torch.optim's own classes, where no kernel decides the skip on the device."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor


class TorchOptimizer:
    """A torch optimizer behind the loop's protocol; reads `found` on the host once a step."""

    reads_device = True
    by_closure = False

    def __init__(self, params: list[Tensor], inner: torch.optim.Optimizer) -> None:
        self.params = params
        self.inner = inner

    def step(self, grads: list[Tensor | None], lr: Tensor, divisor: Tensor | None, found: Tensor) -> None:
        skip, rate = torch.stack((found, lr)).tolist()
        if skip:
            return
        have = [g for g in grads if g is not None]
        if divisor is not None:
            torch._foreach_div_(have, divisor)
        for param, grad in zip(self.params, grads, strict=True):
            param.grad = grad
        self._set_rate(rate)
        self.inner.step()

    def _set_rate(self, rate: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = rate

    def reset(self) -> None:
        self.inner.state.clear()

    def state_tensors(self) -> list[Tensor]:
        return [v for s in self.inner.state.values() for v in _tensors(s)]

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.inner.state_dict()["state"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        groups = self.inner.state_dict()["param_groups"]
        self.inner.load_state_dict({"state": state["state"], "param_groups": groups})


class ClosureOptimizer(TorchOptimizer):
    """An optimizer that evaluates the loss several times in one update (L-BFGS)."""

    by_closure = True

    def step_closure(self, closure: Callable[[], Tensor], lr: Tensor) -> Tensor:
        """`closure` leaves gradients in `.grad` and returns the loss; 1 where the update ended non-finite.

        Parameters and state are then as they were before it.
        """
        params = [p.detach().clone() for p in self.params]
        state = deepcopy(self.inner.state_dict()["state"])
        self._set_rate(lr.item())
        self.inner.step(closure)  # type: ignore[arg-type]
        with torch.no_grad():
            sizes = torch._foreach_norm([*self.params, *(p.grad for p in self.params if p.grad is not None)])
            found = torch.stack(sizes).isfinite().all().logical_not().float()
            if found.item():
                for param, before in zip(self.params, params, strict=True):
                    param.copy_(before)
                self.load_state_dict({"state": state})
        return found


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    return []
