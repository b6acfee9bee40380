"""How much of an update rounding threw away, where weights are stored in half and have no master copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class UpdateMeter(Protocol):
    """Measures the share of weights that had a gradient and did not move."""

    active: bool

    def before(self, weights: Sequence[Tensor]) -> None: ...

    def after(self, weights: Sequence[Tensor], grads: Sequence[Tensor | None], found: Tensor) -> None: ...

    def drain(self) -> float | None: ...


class NothingLost:
    """Weights or their masters are float32: nothing is measured."""

    active = False

    def before(self, weights: Sequence[Tensor]) -> None:
        pass

    def after(self, weights: Sequence[Tensor], grads: Sequence[Tensor | None], found: Tensor) -> None:
        pass

    def drain(self) -> float | None:
        return None


class LostUpdates:
    """Counts, on the device, weights whose value is the same after an update although their gradient was not zero.

    `before` and `after` stand around an attempt; `drain` reads and clears what was counted.
    """

    active = True

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._counts: Tensor | None = None

    @torch.no_grad()
    def before(self, weights: Sequence[Tensor]) -> None:
        """Keep the values of the half weights."""
        self._kept = [w.detach().clone() for w in _half(weights)]

    @torch.no_grad()
    def after(self, weights: Sequence[Tensor], grads: Sequence[Tensor | None], found: Tensor) -> None:
        """Count what did not move, nothing where `found` is 1; `grads` are those of `weights`, None where none was."""
        by_weight = [g for w, g in zip(weights, grads, strict=True) if w.dtype != torch.float32]
        for old, new, grad in zip(self._kept, _half(weights), by_weight, strict=True):
            if grad is not None:
                asked = grad != 0
                counts = torch.stack([((old == new) & asked).sum(), asked.sum()]) * found.eq(0)
                self._counts = counts if self._counts is None else self._counts + counts
        self._kept = []

    def drain(self) -> float | None:
        """The share since the last call, 0 to 1; None when no update was measured. Reads from the device."""
        counts, self._counts = self._counts, None
        if counts is None:
            return None
        lost, asked = counts.tolist()
        return lost / asked if asked else None


def _half(weights: Sequence[Tensor]) -> list[Tensor]:
    return [w for w in weights if w.dtype != torch.float32]
