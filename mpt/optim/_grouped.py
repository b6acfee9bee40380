"""One optimizer made of one for each number format of its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpt.optim._base import Optimizer


class Grouped:
    """Fused kernels take tensors of one dtype; half weights with float32 norms have two."""

    reads_device = False
    by_closure = False

    def __init__(self, params: list[Tensor], places: list[list[int]], inner: list[Optimizer]) -> None:
        self.params = params
        self._places, self._inner = places, inner

    def step(self, grads: list[Tensor | None], lr: Tensor, divisor: Tensor | None, found: Tensor) -> None:
        for place, optimizer in zip(self._places, self._inner, strict=True):
            optimizer.step([grads[i] for i in place], lr, divisor, found)

    def reset(self) -> None:
        for optimizer in self._inner:
            optimizer.reset()

    def state_tensors(self) -> list[Tensor]:
        return [t for optimizer in self._inner for t in optimizer.state_tensors()]

    def state_dict(self) -> dict[str, Any]:
        return {"groups": [optimizer.state_dict() for optimizer in self._inner]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for optimizer, saved in zip(self._inner, state["groups"], strict=True):
            optimizer.load_state_dict(saved)


def by_dtype(params: list[Tensor], make: Callable[[list[Tensor]], Optimizer]) -> Optimizer:
    """`make` over the parameters of each dtype, joined; `make(params)` itself where there is one."""
    places: dict[torch.dtype, list[int]] = {}
    for i, param in enumerate(params):
        places.setdefault(param.dtype, []).append(i)
    if len(places) == 1:
        return make(params)
    groups = list(places.values())
    return Grouped(params, groups, [make([params[i] for i in place]) for place in groups])
