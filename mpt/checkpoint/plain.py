"""What a checkpoint may hold: plain containers, scalars and tensors, as default `torch.load` takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_SCALARS = (str, bytes, bool, int, float, type(None), torch.dtype, torch.device, torch.Size)


def leaves(state: Any, where: str = "state") -> Iterator[tuple[str, Any]]:
    """Name and value of everything that is no dict, list or tuple."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from leaves(key, f"{where} key")
            yield from leaves(value, f"{where}.{key}")
    elif isinstance(state, (list, tuple)) and not isinstance(state, torch.Size):
        for i, value in enumerate(state):
            yield from leaves(value, f"{where}[{i}]")
    else:
        yield where, state


def check_plain(state: Any) -> None:
    """Raises: TypeError naming the first member that default `torch.load` would refuse."""
    for where, value in leaves(state):
        plain = type(value) in _SCALARS or isinstance(value, Tensor)
        if not plain:
            raise TypeError(f"{where} is a {type(value).__name__}; a checkpoint holds tensors and plain values only")


def size_bytes(state: Any) -> int:
    """Bytes of all tensors' storages; a shared one counts once, as it is saved once."""
    storages = {}
    for _, value in leaves(state):
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr(), value.device] = storage.nbytes()
    return sum(storages.values())
