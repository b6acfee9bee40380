"""One sample after another as workers read them, and side by side as a batch.

A sample that can't be read travels back as a note, not as an exception, which would lose its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mpt.data._context import Look
from mpt.data._order import AUGMENT, generator

# How many samples in a row may be unreadable before data.on_error=skip gives up.
MAX_SKIPS = 64

Key = tuple[int, int]


class Taken(NamedTuple):
    """One sample: inputs (images: H,W,C), targets, and what had to be converted of it."""

    inputs: Tensor
    targets: Tensor
    changed: tuple[str, ...] = ()


class Reader(Protocol):
    """Where samples come from; lives in workers, several threads of which may read at once."""

    @property
    def unreadable(self) -> tuple[type[Exception], ...]: ...

    def __len__(self) -> int: ...

    def read(self, index: int, bits: np.random.Philox) -> Taken:
        """One sample, all that is random in it from `bits`; raises one of `unreadable`."""
        ...

    def name(self, index: int) -> str:
        """What the sample is called in messages: its file."""
        ...

    def look(self, index: int) -> tuple[str, ...]:
        """What is odd about a sample that can be trained on; raises one of `unreadable`."""
        ...


class Sample(NamedTuple):
    """What a worker made of one index; without inputs where nothing could be read."""

    inputs: Tensor | None
    targets: Tensor | None
    faults: list[tuple[str, str]]
    changed: tuple[tuple[int, str], ...] = ()
    number: int = -1


class Packed(NamedTuple):
    """A batch on its way; `faults`: samples that could not be read, and why; `changed`: those converted, and how."""

    inputs: Tensor | None
    targets: Tensor | None
    faults: list[tuple[str, str]]
    changed: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Samples(Dataset[Sample]):
    """(epoch, index) → Sample; with `replace`, an unreadable sample's place is taken by the next readable one."""

    reader: Reader
    seed: int
    replace: bool

    def __getitem__(self, key: Key) -> Sample:
        epoch, first = key
        faults: list[tuple[str, str]] = []
        for index in self.candidates(first):
            try:
                inputs, targets, changed = self.reader.read(index, generator(AUGMENT, self.seed, epoch, index))
                return Sample(inputs, targets, faults, tuple((index, how) for how in changed), index)
            except self.reader.unreadable as error:
                faults.append((self.reader.name(index), f"{type(error).__name__}: {error}"))
        return Sample(None, None, faults)

    def candidates(self, first: int) -> Iterator[int]:
        """The sample itself, and those that would take its place, in turn."""
        return ((first + step) % len(self.reader) for step in range(MAX_SKIPS if self.replace else 1))


@dataclass(frozen=True)
class Looks(Dataset[Look]):
    """index → what is to be said of the sample."""

    reader: Reader
    part: str

    def __getitem__(self, index: int) -> Look:
        name = self.reader.name(index)
        try:
            return Look(self.part, name, None, self.reader.look(index))
        except self.reader.unreadable as error:
            return Look(self.part, name, f"{type(error).__name__}: {error}", ())


def pack(samples: list[Sample]) -> Packed:
    """Samples side by side; those that could not be read are left out."""
    faults = [fault for sample in samples for fault in sample.faults]
    inputs = [s.inputs for s in samples if s.inputs is not None]
    targets = [s.targets for s in samples if s.targets is not None]
    kinds: dict[tuple[tuple[int, ...], torch.dtype], int] = {}
    for sample in samples:
        if sample.inputs is not None:
            kinds.setdefault((tuple(sample.inputs.shape), sample.inputs.dtype), sample.number)
    if len(kinds) > 1:
        faults.append(_unlike(kinds))
    if len(kinds) != 1:
        return Packed(None, None, faults)
    changed = tuple(change for sample in samples for change in sample.changed)
    return Packed(torch.stack(inputs), torch.stack(targets), faults, changed)


def _unlike(kinds: dict[tuple[tuple[int, ...], torch.dtype], int]) -> tuple[str, str]:
    """Two samples of one batch that can't lie side by side."""
    (one, first), (other, second) = list(kinds.items())[:2]
    what = "shapes" if one[0] != other[0] else "formats"
    told = [str(kind[0] if what == "shapes" else kind[1]).removeprefix("torch.") for kind in (one, other)]
    return f"samples {first} and {second}", f"samples of one batch have different {what}: {told[0]} and {told[1]}"


@dataclass(frozen=True)
class Finished:
    """`pack`, and the inputs as the model takes them."""

    finish: Callable[[Tensor], Tensor]

    def __call__(self, samples: list[Sample]) -> Packed:
        packed = pack(samples)
        return packed if packed.inputs is None else packed._replace(inputs=self.finish(packed.inputs))
