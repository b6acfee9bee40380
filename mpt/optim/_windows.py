"""Kernels of float32 over weights and moments that are stored in fewer bits: one window of numbers after another.

The kernels are torch's fused ones, so that unscaling, clipping and the skip stay where they are; around them each
window is read to float32, updated, and stored again. What is held beyond a step is only what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mpt.formats.stored import Dithered, Plain, Storage, Stored
from mpt.optim._base import copy_lists
from mpt.optim._eight_bit import EightBit, coded, fits
from mpt.optim._kernels import Kernel, Operands
from mpt.optim._layout import in_memory_order, laid_out_as

WINDOW = 1 << 22
"""Numbers in one window: 64 MiB of float32 for a weight, its gradient and two moments. A multiple of 8-bit blocks."""


@dataclass(frozen=True)
class Piece:
    """A run of a parameter's numbers in order of memory, and how they and their moments are stored."""

    index: int
    start: int
    stop: int
    weight: Stored
    moments: list[Stored]


class Windowed:
    """An optimizer of one kernel over windows; skips where `found` is 1 without a read of the device."""

    reads_device = False
    by_closure = False

    def __init__(self, params: list[Tensor], kernel: Kernel, moment: str, storage: Storage) -> None:
        self.params = params
        self._kernel = kernel
        self._count = torch.zeros((), device=params[0].device)
        self._one = torch.ones_like(self._count)
        signed = tuple(kernel.moments.values())
        codes = cache(lambda signed: coded(signed, params[0].device))  # one tensor for all pieces
        stores = (_store_of(moment, t, codes) for t in params)
        pieces = [
            p
            for i, (t, store) in enumerate(zip(params, stores, strict=True))
            for p in _pieces(i, t, store, signed, storage)
        ]
        self._windows = list(_windows(pieces))
        self.update_window: Callable[..., None] = self._update  # a value, so that a trace can note one for all alike

    def step(self, grads: list[Tensor | None], lr: Tensor, divisor: Tensor | None, found: Tensor) -> None:
        self._count.add_(self._one)
        for window in self._windows:
            pieces = [p for p in window if grads[p.index] is not None]
            if pieces:
                self.update_window(pieces, grads, lr, divisor, found)
        self._count.sub_(found)

    def _update(
        self, pieces: list[Piece], grads: list[Tensor | None], lr: Tensor, divisor: Tensor | None, found: Tensor
    ) -> None:
        weights = [p.weight.read() for p in pieces]
        moments = [[p.moments[i].read() for p in pieces] for i in range(len(self._kernel.moments))]
        slopes = [self._slope(p, grads[p.index]) for p in pieces]
        self._kernel.update(Operands(weights, slopes, moments, self._count), lr, divisor, found)
        for i, piece in enumerate(pieces):
            piece.weight.write(weights[i], found)
            for held, new in zip(piece.moments, moments, strict=True):
                held.write(new[i], found)

    def _slope(self, piece: Piece, grad: Tensor | None) -> Tensor:
        """The piece's gradient in float32, in the weight's order of memory."""
        assert grad is not None
        alike = laid_out_as(grad, self.params[piece.index])
        return in_memory_order(alike)[piece.start : piece.stop].float()

    def reset(self) -> None:
        for tensor in self.state_tensors():
            tensor.zero_()

    def state_tensors(self) -> list[Tensor]:
        return [*(t for m in self._moments() for t in m.tensors()), self._count]

    def state_dict(self) -> dict[str, Any]:
        return {"moments": [m.tensors() for m in self._moments()], "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = [t for group in state["moments"] for t in group]
        copy_lists(self.state_tensors(), [*saved, state["count"]])

    def _moments(self) -> Iterator[Stored]:
        return (m for window in self._windows for piece in window for m in piece.moments)


_Store = Callable[[Tensor, bool], Stored]


def _pieces(index: int, param: Tensor, store: _Store, signed: tuple[bool, ...], storage: Storage) -> Iterator[Piece]:
    flat = in_memory_order(param)
    for start in range(0, flat.numel(), WINDOW):
        view = flat[start : start + WINDOW]
        moments = [store(view, s) for s in signed]
        yield Piece(index, start, start + view.numel(), storage.of(index, view, start), moments)


def _store_of(moment: str, param: Tensor, codes: Callable[[bool], Tensor]) -> _Store:
    """Makes zeros in the moments' format for a piece. bfloat16 is rounded to stochastically: to nearest, a second
    moment whose decay is under half a unit would stand still."""
    if moment == "int8" and fits(param):
        return lambda view, signed: EightBit(view.numel(), codes(signed))
    if moment == "bfloat16":
        return lambda view, signed: Dithered(torch.zeros_like(view, dtype=torch.bfloat16))
    return lambda view, signed: Plain(torch.zeros_like(view, dtype=torch.float32))


def _windows(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Neighbours together, up to WINDOW numbers."""
    window: list[Piece] = []
    for piece in pieces:
        if window and sum(p.stop - p.start for p in window) + piece.stop - piece.start > WINDOW:
            yield window
            window = []
        window.append(piece)
    if window:
        yield window
