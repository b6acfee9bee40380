"""Sees a step from below autograd: writes down each op, and each storage's making and end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mpt.dispatch import Mode
from mpt.errors import ModelError, Problem
from mpt.precision.emulate import VECTORS, Emulation
from mpt.precision.flops import executed, flops
from mpt.precision.observe import multiplied, width
from mpt.precision.owners import Labels, Owners
from mpt.predict.inductor import FUSED
from mpt.predict.kinds import Kinds
from mpt.predict.lifetimes import Lifetimes, Made
from mpt.predict.operands import Flow, bytes_of, described, storage_key
from mpt.predict.reads import READ, Reads
from mpt.predict.trace import Op, Phase, Turn
from mpt.recompute import recomputed

OUTSIDE = "(loss and update)"
"""Where ops lie that belong to no module."""

_EMPTY = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})
"""Make a storage and write nothing: no kernel starts."""
_OVERWRITES = frozenset({"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"})
_CAST = torch.ops.aten._to_copy.default


class Noted(NamedTuple):
    """What a part of a step added to a trace: ops, storages, and events that count from the first of those."""

    ops: list[Op]
    made: list[Made]
    events: list[int]


class Tracker(Mode):
    """Entered above FakeTensorMode. Reads of the device outside the model answer as Reads does; inside they end the
    trace.

    `tf32`: float32 products of matrices count as TF32 ones.
    """

    def __init__(self, model: nn.Module, tf32: bool, reads: Reads | None = None) -> None:
        super().__init__()
        self._reads = reads or Reads()
        self.ops: list[Op] = []
        self.flow: list[Flow] = []
        self.turns: list[Turn] = []
        self.uncounted: set[str] = set()
        self.kinds, self.lifetimes = Kinds(), Lifetimes()
        self.phase: Phase | None = None
        self.micro = 0
        self.emulating = False
        self.forward_end = 0
        self._owners, self._labels = Owners(), Labels()
        self._model = model
        self._hooks: list[Any] = []
        self._tf32 = tf32
        self._was_backward = False

    def __enter__(self) -> Any:
        self._owners.follow(self._model, self._enter)
        Emulation.watchers.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        Emulation.watchers.remove(self)
        self._owners.leave()
        for hook in self._hooks:
            hook.remove()

    def _enter(self, name: str) -> None:
        if self._was_backward and not name:
            self.micro, self._was_backward = self.micro + 1, False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: a compiled model runs compiled, and its kernels are seen."""
        return True

    def follow_gradients(self, weights: Iterable[Tensor]) -> None:
        """Storages that become `.grad` of these are gradients."""
        for weight in weights:
            self._hooks.append(weight.register_post_accumulate_grad_hook(self.lifetimes.is_gradient))  # type: ignore[no-untyped-call]

    def saw(self, func: Any, args: tuple[Any, ...], compute: str) -> None:
        """An emulated product, told of by the emulation."""

    def holds(self, x: Tensor, label: str) -> None:
        """A tensor whose numbers are of that format."""
        self._labels.put(x, label)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        module, phase = self._where(node)
        if func is READ:
            return self._read(args[0], module)
        given: list[Tensor] = []
        signature = self.kinds.signature(func, args, kwargs, given)
        operands = tuple(map(self.lifetimes.place, given))
        out = self.kinds.result(signature, func, args, kwargs, given)
        results: list[Tensor] = []
        described(out, results)
        results = [t for t in results if t.layout is torch.strided]
        kernel = self._follow(func, given, results, module, phase)
        read, written = _operands(func, args, given, results)
        work, moved = self._work(func, args), (bytes_of(read), bytes_of(written)) if kernel else (0, 0)
        name = func.overloadpacket.__name__
        self.ops.append(Op(name, module, phase, *work, *moved, kernel, len(read), signature, self.micro))
        self.flow.append(Flow(operands, tuple(map(self.lifetimes.place, results))))
        return out

    def _where(self, node: Any) -> tuple[str, Phase]:
        found = self._found(node)
        turn = Turn(len(self.lifetimes.events), *found, self.micro)
        if not self.turns or self.turns[-1][1:] != turn[1:]:
            self.turns.append(turn)
        return found

    def _found(self, node: Any) -> tuple[str, Phase]:
        if self.phase == "update":
            return OUTSIDE, "update"
        name, phase = self._owners.of(node)
        phase = "backward" if recomputed() else phase
        if phase == "backward" and not self._was_backward:
            self._was_backward, self.forward_end = True, len(self.lifetimes.events)
        return OUTSIDE if name is None else name, phase

    def _read(self, x: Tensor, module: str) -> Any:
        if module != OUTSIDE:
            what = "reads a tensor's value while it computes (aten._local_scalar_dense: .item(), bool() or int())"
            raise Untraceable(Problem(f"module `{module}`" if module else "the model", what))
        return self._reads.answer(x)

    def _follow(self, func: Any, given: list[Tensor], results: list[Tensor], module: str, phase: Phase) -> bool:
        """Whether a kernel writes anything: a new storage, or an operand in place."""
        before = {storage_key(t) for t in given if t.layout is torch.strided}
        new = False
        for tensor in results:
            if storage_key(tensor) not in before:
                new = self.lifetimes.see(tensor, module, phase, again=recomputed() is not None) or new
        if func is _CAST and results and (phase == "forward" or recomputed()):
            self.lifetimes.is_cast(results[0], given[0])
        return (new or func._schema.is_mutable) and func.overloadpacket.__name__ not in _EMPTY

    def _work(self, func: Any, args: tuple[Any, ...]) -> tuple[int, int, str]:
        """FLOPs of the model's and of its kernel, and the format of what is multiplied."""
        found = flops(func, args)
        if found is None:
            self.uncounted.add(func.overloadpacket.__name__)
        return 0 if recomputed() else found or 0, executed(func, args, found or 0), self._form(func, args, found)

    def _form(self, func: Any, args: tuple[Any, ...], found: int | None) -> str:
        if not found:
            return ""
        operands = multiplied(func, args)
        labels = [self._labels.of(t) or str(t.dtype).removeprefix("torch.") for t in operands]
        form = max(labels, key=width)
        return "tfloat32" if self._tf32 and form == "float32" and func not in VECTORS else form

    def lengths(self) -> tuple[int, int, int]:
        """Of ops, storages and events so far."""
        return len(self.ops), len(self.lifetimes.made), len(self.lifetimes.events)

    def since(self, before: tuple[int, int, int]) -> Noted:
        """What came after those lengths."""
        ops, made, events = before
        return Noted(self.ops[ops:], *self.lifetimes.since(made, events))

    def note_again(self, noted: Noted) -> None:
        """What `since` gave happens once more."""
        self.ops += noted.ops
        self.lifetimes.note_again(noted.made, noted.events)

    def note_here(self, noted: Noted) -> None:
        """The same, to the module that runs now."""
        module, phase = self._where(torch._C._current_autograd_node())
        again = recomputed() is not None
        ops = [replace(op, module=module, phase=phase, micro=self.micro) for op in noted.ops]
        made = [m._replace(module=module, phase=phase, again=again) for m in noted.made]
        self.note_again(Noted(ops, made, noted.events))


def _operands(
    func: Any, args: tuple[Any, ...], given: list[Tensor], results: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """What an op reads and what it writes."""
    name = func.overloadpacket.__name__
    if name == FUSED:
        read, written = args
        return read, written
    written = results or (given if func._schema.is_mutable else [])  # lists that change in place are not returned
    if name not in _OVERWRITES:
        return given, written
    return (given[len(given) // 2 :] if len(given) > 1 else []), given[: len(given) // 2 or 1]


class Untraceable(ModelError):
    """A step that can't be followed on tensors that hold nothing."""
