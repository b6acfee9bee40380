"""To which module an op belongs, and what a storage holds: for whoever watches a pass from below autograd."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mpt.recompute import recomputed

Phase = Literal["forward", "backward"]
T = TypeVar("T")
PHASES: tuple[Phase, ...] = ("forward", "backward")


class Owners:
    """Which module an op belongs to: in forward the innermost that runs, in backward by autograd's numbering."""

    def __init__(self) -> None:
        self._running: list[str] = []
        self._starts: list[int] = []
        self._names: list[str | None] = []
        self._thread = threading.get_ident()
        self._hooks: list[RemovableHandle] = []

    def follow(self, model: nn.Module, entering: Callable[[str], object]) -> None:
        """From here on modules are pushed and popped as they run; `entering` is told the name of each first."""
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(partial(self._enter, name, entering), prepend=True))
            self._hooks.append(module.register_forward_hook(lambda *_: self.pop(), always_call=True))

    def leave(self) -> None:
        """The model is as it was before `follow`."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _enter(self, name: str, entering: Callable[[str], object], module: nn.Module, args: Any) -> None:
        entering(name)
        self.push(name)

    def push(self, name: str) -> None:
        self._running.append(name)
        self._turn(name)

    def pop(self) -> None:
        self._running.pop()
        self._turn(self._running[-1] if self._running else None)

    def of(self, node: Any) -> tuple[str | None, Phase]:
        """The module's name, None outside all, and the phase; a recomputed forward is forward."""
        if self._running:
            return self._running[-1], "forward"
        again = recomputed()  # its own call is below the hooks
        if again is not None:
            return again, "forward"
        if node is None:
            return None, "forward"
        at = bisect_right(self._starts, node._sequence_nr()) - 1
        return (self._names[at] if at >= 0 else None), "backward"

    def _turn(self, name: str | None) -> None:
        """From here on nodes belong to that module. Numbers are of one thread; those of others are not kept."""
        if threading.get_ident() == self._thread:
            self._starts.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
            self._names.append(name)


def place(module: str | None, line: str) -> str:
    """Where an op stands, for people: its module, and the line of code where that is known."""
    where = f"module `{module}`" if module else "the model's own forward"
    return f"{where} ({line})" if line else where


class ByStorage(Generic[T]):
    """Something known of a storage, for as long as it lives."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[torch.UntypedStorage], T]] = {}

    def put(self, x: Tensor, known: T) -> None:
        storage = x.untyped_storage()
        key = id(storage)
        self._of[key] = weakref.ref(storage, lambda _: self._of.pop(key, None)), known

    def get(self, x: Tensor) -> T | None:
        """None for a tensor of which nothing is known, or that has no storage (a sparse one)."""
        found = self._of.get(id(x.untyped_storage())) if x.layout is torch.strided else None
        return found[1] if found else None


class Labels(ByStorage[str]):
    """Formats of numbers by the storage that holds them."""

    def of(self, x: Tensor) -> str:
        """Empty for a tensor that holds what its dtype says."""
        return self.get(x) or ""
