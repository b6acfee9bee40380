"""What reads of a device answer where tensors hold nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from mpt.dispatch import Mode

READ = torch.ops.aten._local_scalar_dense.default
"""The op that brings a number to the host: .item(), bool() or int() of a tensor."""


class Reads(Mode):
    """Reads of the device answer 0: policies look for weights out of range, optimizers for a step to be skipped.

    A number among `state`, an optimizer's, counts its updates: it answers 1, as in the first, and none divides by 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state: Callable[[], Iterable[Tensor]] = tuple

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return self.answer(args[0]) if func is READ else func(*args, **(kwargs or {}))

    def answer(self, x: Tensor) -> bool | int | float:
        """What a read of that tensor gives."""
        if x.dtype == torch.bool:
            return False
        number = any(x is held for held in self.state())
        return float(number) if x.dtype.is_floating_point else int(number)
