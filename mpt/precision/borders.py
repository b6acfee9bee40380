"""Modules that compute in another format than their surroundings: a wrapped forward casts what comes in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from mpt.formats.rounding import storage_dtype
from mpt.precision.capability import Mechanism
from mpt.precision.emulate import Emulation
from mpt.precision.nested import cast, tensors
from mpt.precision.switches import tfloat32_switched

_MARK = "mpt.precision.borders"


class Borders:
    """The wrapped modules of one model; while not `active` they are as if never wrapped.

    The wrapper is an attribute of the instance: names of parameters and of the state dict stay as they are.
    """

    def __init__(self, mechanism: Mechanism, emulation: Emulation | None) -> None:
        self.active = True
        self._mechanism = mechanism
        self._emulation = emulation

    def enforce(self, model: nn.Module, changes: Mapping[str, str]) -> None:
        """Wrap the modules named in `changes` to compute in the format that is given for each."""
        modules = dict(model.named_modules())
        for name, format_name in changes.items():
            self._wrap(modules[name], format_name)

    def _wrap(self, module: nn.Module, format_name: str) -> None:
        forward = module.forward
        run = self._half(forward, format_name) if self._mechanism.half else self._tfloat32(forward, format_name)

        @functools.wraps(forward)
        def bordered(*args: Any, **kwargs: Any) -> Any:
            return run(*args, **kwargs) if self.active else forward(*args, **kwargs)

        module.forward = bordered

    def _half(self, forward: Callable[..., Any], format_name: str) -> Callable[..., Any]:
        """float32 inside: autocast off, inputs cast. Compute format in a float32 module: autocast on, results cast."""
        device, dtype = self._mechanism.device, storage_dtype(self._mechanism.compute)
        full = format_name == "float32"

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device, dtype=dtype, enabled=not full):
                if full:
                    return forward(*cast(args, torch.float32), **cast(kwargs, torch.float32))
                return cast(forward(*args, **kwargs), torch.float32)

        return run

    def _tfloat32(self, forward: Callable[..., Any], format_name: str) -> Callable[..., Any]:
        """Operands are float32 either way, so the mode is switched: in forward, and around this module's own nodes
        in backward, which are those that autograd numbered while it ran. Never compiled: a graph has one mode."""
        switched = functools.partial(self._mode, format_name == "tfloat32")

        def run(*args: Any, **kwargs: Any) -> Any:
            first = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
            with switched():
                out = forward(*args, **kwargs)
            for node in _nodes_since(first, out):
                _switch_around(node, switched)
            return out

        return run if self._emulation is not None else torch.compiler.disable(run)  # type: ignore[no-untyped-call]

    def _mode(self, on: bool) -> AbstractContextManager[None]:
        return tfloat32_switched(on) if self._emulation is None else self._emulation.switched(on)


def _nodes_since(first: int, out: Any) -> Iterator[Node]:
    """Autograd nodes behind `out` that were made since sequence number `first` and no inner border claimed."""
    ahead = [t.grad_fn for t in tensors(out) if t.grad_fn is not None]
    seen: set[Node] = set()
    while ahead:
        node = ahead.pop()
        if node in seen or node._sequence_nr() < first or not node.next_functions:
            continue
        seen.add(node)
        ahead.extend(n for n, _ in node.next_functions if n is not None)
        marks: dict[Any, Any] = node.metadata  # type: ignore[assignment]
        if _MARK not in marks:
            marks[_MARK] = True
            yield node


def _switch_around(node: Node, switched: Callable[[], AbstractContextManager[None]]) -> None:
    entered: list[AbstractContextManager[None]] = []

    def before(_: Any) -> None:
        entered.append(switched())
        entered[-1].__enter__()

    def after(_inputs: Any, _outputs: Any) -> None:
        entered.pop().__exit__(None, None, None)

    node.register_prehook(before)
    node.register_hook(after)


@contextmanager
def paused(borders: Borders) -> Iterator[None]:
    """No border acts inside."""
    borders.active = False
    try:
        yield
    finally:
        borders.active = True
