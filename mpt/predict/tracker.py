"""Sees a step from below autograd: writes down each op, and each storage's making and end."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten

from mpt.errors import ModelError, Problem
from mpt.precision.emulate import VECTORS, Emulation
from mpt.precision.flops import executed, flops
from mpt.precision.observe import multiplied, width
from mpt.precision.owners import Labels, Owners
from mpt.predict.trace import Op, Phase, Storage, Turn
from mpt.recompute import recomputed

OUTSIDE = "(loss and update)"
"""Where ops lie that belong to no module."""

_OVERWRITES = frozenset({"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"})
_CAST = torch.ops.aten._to_copy.default
_READ = torch.ops.aten._local_scalar_dense.default


class TensorSpec(NamedTuple):
    """A tensor that was an operand."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Call(NamedTuple):
    """An op with operands of that kind: `leaves` of its arguments, tensors by their TensorSpec, laid out as `spec`."""

    func: Any
    leaves: tuple[Any, ...]
    spec: TreeSpec


class Place(NamedTuple):
    """Where an operand or a result lies: storages of the trace by their index, those from before by negative numbers.

    Units: bytes of the whole storage, elements of `offset`.
    """

    storage: int
    nbytes: int
    offset: int
    spec: TensorSpec


class Flow(NamedTuple):
    """Of one op: its operands as they come in its Call, and its results."""

    given: tuple[Place, ...]
    made: tuple[Place, ...]


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Entered above FakeTensorMode. Reads of the device outside the model answer 0; inside they end the trace.

    `tf32`: float32 products of matrices count as TF32 ones.
    """

    def __init__(self, model: nn.Module, tf32: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []
        self.events: list[int] = []
        self.calls: list[Call] = []
        self.flow: list[Flow] = []
        self.uncounted: set[str] = set()
        self.phase: Phase | None = None
        self.micro = 0
        self.emulating = False
        self.forward_end = 0
        self.turns: list[Turn] = []
        self._storages: list[tuple[int, str, Phase]] = []
        self._again: set[int] = set()
        self._gradients: dict[int, int] = {}
        self._casts: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._index: dict[int, int] = {}
        self._outside: dict[int, int] = {}
        self._signatures: dict[Any, int] = {}
        self._fresh: dict[int, Callable[[], Tensor] | None] = {}
        self._owners, self._labels = Owners(), Labels()
        self._model = model
        self._hooks: list[Any] = []
        self._tf32 = tf32
        self._was_backward = False

    def __enter__(self) -> Any:
        self._owners.follow(self._model, self._enter)
        Emulation.watchers.append(self)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        Emulation.watchers.remove(self)
        self._owners.leave()
        for hook in self._hooks:
            hook.remove()

    def _enter(self, name: str) -> None:
        if self._was_backward and not name:
            self.micro, self._was_backward = self.micro + 1, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would wrap this method, and pay at each op."""
        return False

    def number(self, parameters: Iterable[Tensor]) -> None:
        """From here on storages tell which of these they are a cast or the gradient of."""
        for place, parameter in enumerate(parameters):
            self._weights[_key(parameter)] = self._numbers[id(parameter)] = place

    def follow_gradients(self, weights: Iterable[Tensor]) -> None:
        """Storages that become `.grad` of these are gradients."""
        for weight in weights:
            self._hooks.append(weight.register_post_accumulate_grad_hook(self.is_gradient))  # type: ignore[no-untyped-call]

    def is_gradient(self, holder: Tensor) -> None:
        """What its `.grad` lies in is a gradient."""
        if holder.grad is not None:
            self._gradients[self._index.get(_key(holder.grad), -1)] = self._numbers.get(id(holder), -1)

    def saw(self, func: Any, args: tuple[Any, ...], compute: str) -> None:
        """An emulated product, told of by the emulation."""

    def holds(self, x: Tensor, label: str) -> None:
        """A tensor whose numbers are of that format."""
        self._labels.put(x, label)

    def storages(self) -> tuple[Storage, ...]:
        """All that came to be, in order."""
        of = {**self._casts, **self._gradients}
        return tuple(
            Storage(*made, index in self._gradients, of.get(index, -1), "activations" if index in self._again else "")
            for index, made in enumerate(self._storages)
        )

    def ready(self) -> tuple[int, ...]:
        """Storages of the weights' gradients, as they were complete."""
        return tuple(index for index, weight in self._gradients.items() if index >= 0 and weight >= 0)

    def order(self) -> tuple[int, ...]:
        """The events; storages that went together are in the order of their making, as autocast's cache has none."""
        found: list[int] = []
        gone: list[int] = []
        for at, event in enumerate(self.events):
            if gone and (event >= 0 or at == self.forward_end):
                found += sorted(gone, reverse=True)
                gone = []
            (found if event >= 0 else gone).append(event)
        return (*found, *sorted(gone, reverse=True))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        module, phase = self._where(node)
        if func is _READ:
            return self._read(args[0], module, phase)
        given: list[Tensor] = []
        signature = self._signature(func, args, kwargs, given)
        operands = tuple(map(self._place, given))
        fresh = self._fresh.get(signature)
        out = func(*args, **kwargs) if fresh is None else fresh()
        if fresh is None and type(out) is FakeTensor and not func._schema.is_mutable:
            self._fresh[signature] = _maker(out, given)
        results: list[Tensor] = []
        _described(out, results)
        results = [t for t in results if t.layout is torch.strided]
        kernel = self._follow(given, results, module, phase, mutates=func._schema.is_mutable)
        if func is _CAST and results and (phase == "forward" or recomputed()) and _key(given[0]) in self._weights:
            self._casts[self._index[_key(results[0])]] = self._weights[_key(given[0])]
        self._note(func, args, given, results, kernel, signature, module, phase)
        self.flow.append(Flow(operands, tuple(map(self._place, results))))
        return out

    def _place(self, x: Tensor) -> Place:
        key = _key(x)
        index = self._index.get(key)
        if index is None:
            index = self._outside.setdefault(key, -1 - len(self._outside))
        return Place(index, x.untyped_storage().nbytes(), int(x.storage_offset()), _spec(x))

    def _where(self, node: Any) -> tuple[str, Phase]:
        found = self._found(node)
        turn = Turn(len(self.events), *found, self.micro)
        if not self.turns or self.turns[-1][1:] != turn[1:]:
            self.turns.append(turn)
        return found

    def _found(self, node: Any) -> tuple[str, Phase]:
        if self.phase == "update":
            return OUTSIDE, "update"
        name, phase = self._owners.of(node)
        phase = "backward" if recomputed() else phase
        if phase == "backward" and not self._was_backward:
            self._was_backward, self.forward_end = True, len(self.events)
        return OUTSIDE if name is None else name, phase

    def _read(self, x: Tensor, module: str, phase: Phase) -> Any:
        if module != OUTSIDE:
            what = "reads a tensor's value while it computes (aten._local_scalar_dense: .item(), bool() or int())"
            raise Untraceable(Problem(f"module `{module}`" if module else "the model", what))
        return _zero(x)

    def _follow(self, given: list[Tensor], results: list[Tensor], module: str, phase: Phase, mutates: bool) -> bool:
        """Whether anything was written: a new storage, or an operand in place."""
        before = {_key(t) for t in given if t.layout is torch.strided}
        new = False
        for tensor in results:
            key = _key(tensor)
            if key in before or key in self._index:
                new = new or (mutates and key in before)
                continue
            new = True
            storage = tensor.untyped_storage()
            self._index[key] = index = len(self._storages)
            self._storages.append((storage.nbytes(), module, phase))
            if recomputed():
                self._again.add(index)
            self.events.append(index)
            weakref.finalize(storage, self._freed, key).atexit = False
        return new or mutates

    def _freed(self, key: int) -> None:
        index = self._index.pop(key, None)
        if index is not None:
            self.events.append(~index)

    def _note(
        self,
        func: Any,
        args: tuple[Any, ...],
        given: list[Tensor],
        results: list[Tensor],
        kernel: bool,
        signature: int,
        module: str,
        phase: Phase,
    ) -> None:
        name, found = func.overloadpacket.__name__, flops(func, args)
        if found is None:
            self.uncounted.add(name)
        written = results or (given if func._schema.is_mutable else [])  # lists that change in place are not returned
        if name in _OVERWRITES:
            written, given = given[: len(given) // 2 or 1], given[len(given) // 2 :] if len(given) > 1 else []
        moved = (_bytes(given), _bytes(written)) if kernel else (0, 0)
        model = 0 if recomputed() else found or 0
        work = model, executed(func, args, found or 0), self._form(func, args, found)
        self.ops.append(Op(name, module, phase, *work, *moved, kernel, len(given), signature, self.micro))

    def _form(self, func: Any, args: tuple[Any, ...], found: int | None) -> str:
        if not found:
            return ""
        operands = multiplied(func, args)
        labels = [self._labels.of(t) or str(t.dtype).removeprefix("torch.") for t in operands]
        form = max(labels, key=width)
        return "tfloat32" if self._tf32 and form == "float32" and func not in VECTORS else form

    def _signature(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor]) -> int:
        """Tensors among the arguments are added to `given`."""
        described = func, _described(args, given), _described(kwargs, given)
        index = self._signatures.setdefault(described, len(self.calls))
        if index == len(self.calls):
            leaves, spec = tree_flatten((args, kwargs))
            self.calls.append(Call(func, tuple(_plain(leaf) for leaf in leaves), spec))
        return index

    def lengths(self) -> tuple[int, int, int]:
        """Of ops, storages and events so far."""
        return len(self.ops), len(self._storages), len(self.events)

    def since(self, before: tuple[int, int, int]) -> tuple[list[Op], list[tuple[int, str, Phase]], list[int]]:
        """What came after those lengths; events count storages from there."""
        ops, storages, events = before
        shifted = [e - storages if e >= 0 else e + storages for e in self.events[events:]]
        return self.ops[ops:], self._storages[storages:], shifted

    def note_again(self, ops: list[Op], storages: list[tuple[int, str, Phase]], events: list[int]) -> None:
        """What `since` gave happens once more."""
        first = len(self._storages)
        self.ops += ops
        self._storages += storages
        self.events += [e + first if e >= 0 else e - first for e in events]


class ZeroReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reads of the device answer 0: while a policy is installed, they look for weights out of range."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return _zero(args[0]) if func is _READ else func(*args, **(kwargs or {}))


def _zero(x: Tensor) -> bool | int | float:
    return False if x.dtype == torch.bool else 0.0 if x.dtype.is_floating_point else 0


class Untraceable(ModelError):
    """A step that can't be followed on tensors that hold nothing."""


def _maker(result: FakeTensor, given: list[Tensor]) -> Callable[[], Tensor] | None:
    """Makes results of an op on operands of one kind, ten times as fast as torch finds out what they are; None for a
    result that lies in an operand's storage, or in a part of its own."""
    storage = result.untyped_storage()
    whole = storage.nbytes() == result.numel() * result.element_size() and result.layout is torch.strided
    if not whole or storage._cdata in {_key(t) for t in given if t.layout is torch.strided}:
        return None
    mode, device = result.fake_mode, result.device
    like = partial(torch.empty_strided, tuple(result.shape), result.stride(), dtype=result.dtype, device="meta")

    def make() -> Tensor:
        with torch._C._DisableTorchDispatch():
            return FakeTensor(mode, like(), device)

    return make


def _described(x: Any, tensors: list[Tensor]) -> Any:
    """Arguments or results as something to compare: as tree_flatten and _plain, in a third of the time. Adds the
    tensors among them to `tensors`."""
    if isinstance(x, Tensor):
        tensors.append(x)
        return x.shape, x.stride(), x.dtype
    if isinstance(x, (list, tuple)):
        return (type(x), *[_described(item, tensors) for item in x])
    if isinstance(x, dict):
        return tuple([(key, _described(value, tensors)) for key, value in x.items()])
    return _plain(x)


def _plain(leaf: Any) -> Any:
    """A leaf as something that can be compared and kept."""
    if isinstance(leaf, Tensor):
        return _spec(leaf)
    try:
        hash(leaf)
    except TypeError:
        return repr(leaf)
    return leaf


def _spec(x: Tensor) -> TensorSpec:
    return TensorSpec(tuple(x.shape), tuple(x.stride()), x.dtype)


def _key(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of elements, each storage counted once by its largest view: an expanded view is read once."""
    sizes: dict[int, int] = {}
    for t in tensors:
        if t.layout is torch.strided:
            size = min(t.numel() * t.element_size(), t.untyped_storage().nbytes())
            sizes[_key(t)] = max(sizes.get(_key(t), 0), size)
    return sum(sizes.values())
