"""One kernel for all parameters, whose moments are stored in their format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from mpt.formats.stored import Storage
from mpt.optim._base import Optimizer, copy_lists, pairs
from mpt.optim._grouped import by_dtype
from mpt.optim._kernels import Kernel, Operands
from mpt.optim._layout import in_memory_order, is_dense, laid_out_as
from mpt.optim._windows import Windowed

T = TypeVar("T", Tensor, Tensor | None)


def of_kernel(params: list[Tensor], kernel: Kernel, moment: str, storage: Storage | None) -> Optimizer:
    """The kernel over all parameters of each dtype at once; with a `storage` window by window."""
    assert all(map(is_dense, params)), "kernels take numbers as they lie in memory; build gives each weight its own"
    if storage is not None:
        return Windowed(params, kernel, moment, storage)
    return by_dtype(params, lambda group: Fused(group, kernel))


class Fused:
    """An optimizer of one kernel, called once for all parameters.

    Moments are zeros from the start: a first step that is skipped leaves zeros, where torch's SGD leaves uninitialised
    momentum, and a first step is like every other (0 · momentum + gradient).

    On a CPU the kernels go through memory from end to end, and copy each gradient that is not laid out row by row,
    to no use. So they get those tensors as one row, in order of memory. Row 4 of docs/performance.md holds
    a channels_last ResNet-18's step against one with torch's own optimizer.
    """

    reads_device = False
    by_closure = False

    def __init__(self, params: list[Tensor], kernel: Kernel) -> None:
        self.params = params
        self._kernel = kernel
        self._moments = [
            [torch.zeros_like(p, memory_format=torch.preserve_format) for p in params] for _ in kernel.moments
        ]
        self._count = torch.zeros((), dtype=torch.float32, device=params[0].device)
        self._one = torch.ones_like(self._count)  # made once: torch makes a tensor of a number in each call
        on_cpu = params[0].device.type == "cpu"
        self._rows = [i for i, p in enumerate(params) if on_cpu and not p.is_contiguous() and is_dense(p)]
        self._given = [self._in_rows(of) for of in (params, *self._moments)]

    def step(self, grads: list[Tensor | None], lr: Tensor, divisor: Tensor | None, found: Tensor) -> None:
        params, *moments = self._given
        if self._rows:
            grads = self._in_rows(grads)
        if any(g is None for g in grads):  # `None in grads` would compare element by element: 10 µs a tensor
            have = pairs(params, grads)
            params, grads = [params[i] for i in have], [grads[i] for i in have]
            moments = [[of[i] for i in have] for of in moments]
        if self._kernel.counts:
            self._count.add_(self._one)
        self._kernel.update(Operands(params, grads, moments, self._count), lr, divisor, found)  # type: ignore[arg-type]
        if self._kernel.counts:
            self._count.sub_(found)

    def _in_rows(self, tensors: Sequence[T]) -> list[T]:
        """A gradient of another layout than its parameter's is copied to that first."""
        found = list(tensors)
        for i in self._rows:
            if (tensor := found[i]) is not None:
                found[i] = in_memory_order(laid_out_as(tensor, self.params[i]))
        return found

    def reset(self) -> None:
        for tensor in self.state_tensors():
            tensor.zero_()

    def state_tensors(self) -> list[Tensor]:
        return [*(t for of in self._moments for t in of), *([self._count] if self._kernel.counts else [])]

    def state_dict(self) -> dict[str, Any]:
        kept: dict[str, Any] = dict(zip(self._kernel.moments, self._moments, strict=True))
        return {**kept, "count": self._count} if self._kernel.counts else kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, own in zip(self._kernel.moments, self._moments, strict=True):
            copy_lists(own, state[name])
        if self._kernel.counts:
            copy_lists([self._count], [state["count"]])
