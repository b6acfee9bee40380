"""Bytes of tensor storage that came to life since counting began, by watching the results of ops."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from mpt.precision.nested import tensors


class LiveBytes:
    """Counts storages that ops make, until they die; those that were there before (weights, the batch) are not counted.

    Units: bytes.
    """

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def watch(self, args: Any, kwargs: Any, out: Any) -> None:
        """Take the op with these arguments and results into account."""
        for t in tensors((args, kwargs)):
            self._know(t, size=0)
        for t in tensors(out):
            self._know(t, size=None)
        self.peak = max(self.peak, self.now)

    def _know(self, t: Tensor, size: int | None) -> None:
        if t.layout is not torch.strided:
            return  # a sparse one: its parts are tensors of their own, which were seen when they were made
        storage = t.untyped_storage()
        key = id(storage)
        if key in self._known:
            return
        size = storage.nbytes() if size is None else size
        self.now += size

        def died(_: Any) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, died)
