"""What the loop asks of an optimizer: an update whose skip is decided where the gradients are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mpt.formats.table import format_of


class Optimizer(Protocol):
    """`step` divides gradients by `divisor` (None: by nothing) and applies them unless `found` is 1.

    `reads_device` tells whether that takes one read of `found` on the host; `by_closure` whether the
    optimizer evaluates the loss itself.
    """

    params: list[Tensor]
    reads_device: bool
    by_closure: bool

    def step(self, grads: list[Tensor | None], lr: Tensor, divisor: Tensor | None, found: Tensor) -> None: ...

    def reset(self) -> None: ...

    def state_tensors(self) -> list[Tensor]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def default_eps(moment: str, usual: float = 1e-8) -> float:
    """The epsilon beside roots of squares kept in `moment`: `usual`, or more where the format can't tell it from 0.

    In float16 the square of any gradient under sqrt(2^-24) is stored as 0, and an epsilon of 1e-8 would turn
    Adam's update into a step of m / 1e-8. Below that gradient the denominator is epsilon alone.
    """
    return max(usual, 0.0 if moment in ("float32", "int8") else format_of(moment).min_subnormal ** 0.5)


def pairs(params: Sequence[Tensor], grads: list[Tensor | None]) -> list[int]:
    """Indices of the parameters that have a gradient in this step."""
    return [i for i in range(len(params)) if grads[i] is not None]


def copy_lists(own: list[Tensor], saved: list[Tensor]) -> None:
    """`own` holds the values of `saved`, each in its own format and place."""
    assert len(own) == len(saved), f"optimizer state holds {len(saved)} tensors, want {len(own)}"
    with torch.no_grad():
        for mine, theirs in zip(own, saved, strict=True):
            mine.copy_(theirs)
