"""Samples of torch data sets that users wrote."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mpt.data._samples import Taken
from mpt.usercode import FAULTS

Pair = tuple[Tensor, Tensor]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's, numpy's and Python's CPU randomness start from `seed` inside, and go on as before outside."""
    before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    # Not torch.manual_seed, which would reach CUDA's generators too.
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def tensor_of(value: Any) -> Tensor:
    """The user's value as a tensor without a graph, in this machine's byte order. Raises: one of FAULTS."""
    if isinstance(value, Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind in "USO":
        raise TypeError(
            f"{array.dtype} is text or objects: classes are numbers, np.unique(labels, return_inverse=True)"
        )
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.as_tensor(array if array.flags.writeable else array.copy())


def _kind(x: Tensor) -> str:
    """Shape and format, as a message has them: images are H,W,C here and C,H,W at their owner's."""
    shape = tuple(x.shape) if x.ndim < 3 else (x.shape[2], *x.shape[:2])
    return f"{'×'.join(map(str, shape))} of {str(x.dtype).removeprefix('torch.')}"


class DatasetReader:
    """Samples of the user's data set. Shapes: images H,W,C and 0-dim labels, or L and L for tokens."""

    unreadable: tuple[type[Exception], ...] = FAULTS

    def __init__(self, dataset: Dataset[Any], n: int, classes: int) -> None:
        self._dataset, self._n, self._classes = dataset, n, classes
        self._first: str | None = None

    def __len__(self) -> int:
        return self._n

    def read(self, index: int, bits: np.random.Philox) -> Taken:
        """The user's code draws from torch's, numpy's and Python's generators, which `bits` seed for it."""
        with seeded(int(bits.random_raw())):
            inputs, targets = self._dataset[index]
        x, y = tensor_of(inputs), tensor_of(targets)
        if y.is_floating_point() or int(y.min()) < 0 or int(y.max()) >= self._classes:
            raise ValueError(f"targets must be whole numbers from 0 to {self._classes - 1}, got {y.tolist()}")
        if x.ndim == 3:
            x = x.permute(1, 2, 0).contiguous()
        return Taken(x, y.long())

    def name(self, index: int) -> str:
        """The sample's number."""
        return f"sample {index} of data.path"

    def look(self, index: int) -> tuple[str, ...]:
        """Whether the numbers are finite, and lie beside those of the first sample. Raises: ValueError where not."""
        inputs = self.read(index, np.random.Philox(0)).inputs
        if self._first is None:
            self._first = _kind(inputs if index == 0 else self.read(0, np.random.Philox(0)).inputs)
        if _kind(inputs) != self._first:
            raise ValueError(f"its inputs are {_kind(inputs)}, those of sample 0 are {self._first}")
        if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
            raise ValueError(f"{int((~inputs.isfinite()).sum())} of {inputs.numel()} numbers are not finite")
        return ()
