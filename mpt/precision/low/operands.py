"""Operands of one low-bit layer: quantised along the reduction of each product, and told to whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from mpt.formats.hadamard import rotate_first
from mpt.formats.operand import HADAMARD, HIGH, Gemms, Operand, Product
from mpt.formats.quantise import quantise
from mpt.precision.emulate import Emulation
from mpt.precision.low.amax import AmaxHistory

_ANY_DIRECTION = ("none", "tensor", "delayed")


class Layer:
    """What the products of one layer need to know: formats, the compute format, and the history of its scales."""

    def __init__(self, gemms: Gemms, compute: torch.dtype, index: int, history: AmaxHistory | None) -> None:
        self.gemms, self.compute = gemms, compute
        self._index, self._history = index, history
        self.quantise: Callable[..., Tensor] = quantise  # a value, so that a trace can note one for all alike
        self.keeps_weight = _again(gemms.forward.right, gemms.grad_input.right)
        self.keeps_activation = _again(gemms.forward.left, gemms.grad_weight.right)

    def quantised(self, x: Tensor, op: Operand, role: str, record: bool) -> Tensor:
        """x (R, K) as `op` has it, blocks along K: float32, or x itself where it stays high."""
        if op.format == HIGH:
            return x
        if op.hadamard:
            x = rotated(x)
        return self.quantise(x, op, self._amax(x, role, record) if op.scale == "delayed" else None)

    def _amax(self, x: Tensor, role: str, record: bool) -> Tensor:
        now = x.abs().amax().float()
        if self._history is None:
            return now
        if record:
            self._history.saw(self._index, role, now)
        return self._history.expected(self._index, role, now)

    def dtype(self, product: Product) -> torch.dtype:
        """In which tensors the operands are multiplied: those of the compute format where that loses nothing."""
        exact = all(op.format == HIGH or op.in_bfloat16 for op in (product.left, product.right))
        return self.compute if exact and self.compute == torch.bfloat16 else torch.float32


def _again(forward: Operand, backward: Operand) -> bool:
    """Whether backward multiplies what forward did: because it is asked to, or because it would come out the same."""
    if backward.format == "same":
        return True
    free = forward.scale in _ANY_DIRECTION or forward.square
    return forward == backward and forward.low and free and forward.rounding == "nearest"


def rotated(x: Tensor) -> Tensor:
    """x (R, K) rotated along K in runs of 16, the last one filled up with zeros. Fast where x is a transposed view."""
    missing = -x.shape[1] % HADAMARD
    with unseen():
        return rotate_first(F.pad(x.t(), (0, 0, 0, missing)) if missing else x.t()).t()


def told(x: Tensor, op: Operand, compute: torch.dtype) -> Tensor:
    """x itself, after everyone who watches was told what format it has."""
    for watcher in Emulation.watchers:
        watcher.holds(x, op.label if op.low else str(compute).removeprefix("torch."))
    return x


@contextmanager
def unseen() -> Iterator[None]:
    """Products inside are part of quantising, not of the layer."""
    for watcher in Emulation.watchers:
        watcher.emulating = True
    try:
        yield
    finally:
        for watcher in Emulation.watchers:
            watcher.emulating = False
