"""Bytes of tensor storages that come to be in one pass: what the CUDA allocator counts, for any device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mpt.dispatch import Mode


class StorageMeter(Mode):
    """Follows each storage that an op inside returns, from its making until it is freed.

    `live_bytes` and `peak_bytes` count new storages only. What a kernel takes and frees inside one op
    (workspace) is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._followed: dict[int, int] = {}
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What comes to be inside is not followed."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        given = _storages(args) | _storages(kwargs)
        result = func(*args, **kwargs)
        for key, tensor in _tensors(result).items():
            if key not in given and key not in self._followed:
                self._follow(key, tensor)
        return result

    def _follow(self, key: int, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._followed[key] = storage.nbytes()
        self.live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._freed, key).atexit = False

    def _freed(self, key: int) -> None:
        self.live_bytes -= self._followed.pop(key, 0)


def distinct_bytes(groups: Mapping[str, Iterable[Tensor]]) -> dict[str, int]:
    """Bytes of each group's storages; one that several groups share counts in the first."""
    seen: set[int] = set()
    sizes = {}
    for name, tensors in groups.items():
        new = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        sizes[name] = sum(size for key, size in new.items() if key not in seen)
        seen |= new.keys()
    return sizes


def _tensors(tree: Any) -> dict[int, Tensor]:
    """By storage; sparse tensors have none of their own."""
    found = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]
    return {leaf.untyped_storage()._cdata: leaf for leaf in found}


def _storages(tree: Any) -> set[int]:
    return set(_tensors(tree))
