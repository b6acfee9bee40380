"""Ops by their kind: what was called with operands alike has results alike, which are then made and not found out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten

from mpt.predict.operands import Call, described, plain, storage_key


class Kinds:
    """`calls` has one call of each kind; its index is the signature of all."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._signatures: dict[Any, int] = {}
        self._makers: dict[int, Callable[[], Tensor] | None] = {}

    def signature(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor]) -> int:
        """Tensors among the arguments are added to `given`."""
        key = func, described(args, given), described(kwargs, given)
        index = self._signatures.setdefault(key, len(self.calls))
        if index == len(self.calls):
            leaves, spec = tree_flatten((args, kwargs))
            self.calls.append(Call(func, tuple(plain(leaf) for leaf in leaves), spec))
        return index

    def result(
        self, signature: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor]
    ) -> Any:
        """Of the call, which has that signature."""
        make = self._makers.get(signature)
        if make is not None:
            return make()
        out = func(*args, **kwargs)
        if signature not in self._makers and type(out) is FakeTensor and not func._schema.is_mutable:
            self._makers[signature] = _maker(out, given)
        return out


def _maker(result: FakeTensor, given: list[Tensor]) -> Callable[[], Tensor] | None:
    """Makes results of an op on operands of one kind, ten times as fast as torch finds out what they are; None for a
    result that lies in an operand's storage, or in a part of its own."""
    storage = result.untyped_storage()
    whole = storage.nbytes() == result.numel() * result.element_size() and result.layout is torch.strided
    if not whole or storage._cdata in {storage_key(t) for t in given if t.layout is torch.strided}:
        return None
    like = partial(torch.empty_strided, tuple(result.shape), result.stride(), dtype=result.dtype, device="meta")
    return _faked(result, like)


def maker_of(result: FakeTensor) -> Callable[[], Tensor]:
    """Makes tensors as `result`, each in a storage of its own that is as large."""
    count = result.untyped_storage().nbytes() // result.element_size()
    whole = partial(torch.empty, count, dtype=result.dtype, device="meta")
    shape, stride, offset = tuple(result.shape), result.stride(), int(result.storage_offset())
    return _faked(result, lambda: whole().as_strided(shape, stride, offset))


def _faked(result: FakeTensor, like: Callable[[], Tensor]) -> Callable[[], Tensor]:
    mode, device = result.fake_mode, result.device

    def make() -> Tensor:
        with torch._C._DisableTorchDispatch():
            return FakeTensor(mode, like(), device)

    return make
