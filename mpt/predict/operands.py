"""What an op was called with and what it made: kinds of tensors, and where they lie."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec


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


def spec_of(x: Tensor) -> TensorSpec:
    """Its kind."""
    return TensorSpec(tuple(x.shape), tuple(x.stride()), x.dtype)


def storage_key(x: Tensor) -> int:
    """Tells storages apart while they live."""
    return int(x.untyped_storage()._cdata)


def described(x: Any, tensors: list[Tensor]) -> Any:
    """Arguments or results as something to compare: as tree_flatten and `plain`, in a third of the time. Adds the
    tensors among them to `tensors`."""
    if isinstance(x, Tensor):
        tensors.append(x)
        return x.shape, x.stride(), x.dtype
    if isinstance(x, (list, tuple)):
        return (type(x), *[described(item, tensors) for item in x])
    if isinstance(x, dict):
        return tuple([(key, described(value, tensors)) for key, value in x.items()])
    return plain(x)


def plain(leaf: Any) -> Any:
    """A leaf as something that can be compared and kept."""
    if isinstance(leaf, Tensor):
        return spec_of(leaf)
    try:
        hash(leaf)
    except TypeError:
        return repr(leaf)
    return leaf


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Of elements, each storage counted once by its largest view: an expanded view is read once."""
    sizes: dict[int, int] = {}
    for t in tensors:
        if t.layout is torch.strided:
            size = min(t.numel() * t.element_size(), t.untyped_storage().nbytes())
            sizes[storage_key(t)] = max(sizes.get(storage_key(t), 0), size)
    return sum(sizes.values())
