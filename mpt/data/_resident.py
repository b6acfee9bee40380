"""Small data sets live on the training device and are indexed there.

A step costs Python next to nothing: the epoch's order is uploaded once, and one index_select for inputs and one
for targets gathers as many batches as fit GATHER_BYTES; each step then takes a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpt.data._augment import Augment, moved
from mpt.data._context import DataContext, Look
from mpt.data._order import batches_per_epoch, epoch_rows, micro_indices, rank_span
from mpt.types import Batch, DataSpec

# Below this a gather costs more in calls than in bytes; it bounds the memory that gathering ahead takes.
GATHER_BYTES = 256 * 1024
# Batches gathered together must each start on the allocator's alignment, or kernels could round differently.
ALIGNMENT = 64

NO_AUGMENT = Augment(shift=0, flip=False)

Finish = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def as_stored(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets as they were stored."""
    return inputs, targets


def channels_last(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Images stored B,H,W,C as B,C,H,W with channels last in memory, without a copy."""
    return inputs.permute(0, 3, 1, 2), targets


@dataclass(frozen=True)
class Table:
    """Rows of one split on the device; row i of `inputs` belongs to row i of `targets`."""

    inputs: Tensor
    targets: Tensor

    def select(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows with these numbers, copied."""
        return self.inputs.index_select(0, rows), self.targets.index_select(0, rows)

    def tensors(self) -> list[Tensor]:
        return [self.inputs, self.targets]

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Windows:
    """Token windows on the device: `tokens` N,L+1 in a small dtype; targets are the inputs one further."""

    tokens: Tensor

    def select(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the windows with these numbers, as int64."""
        window = self.tokens.index_select(0, rows)
        return window[:, :-1].long(), window[:, 1:].long()

    def tensors(self) -> list[Tensor]:
        return [self.tokens]

    def __len__(self) -> int:
        return len(self.tokens)


def _wrong(inputs: Tensor, targets: Tensor, classes: int) -> list[tuple[bool, bool]]:
    """For each sample whether its inputs are finite, and its targets from 0 to classes - 1."""
    finite = inputs.isfinite().flatten(1).all(1)
    inside = ((targets >= 0) & (targets < classes)).reshape(len(targets), -1).all(1)
    return list(zip(finite.tolist(), inside.tolist(), strict=True))


def _said(finite: bool, inside: bool) -> str | None:
    if finite and inside:
        return None
    return "inputs are not finite" if inside else "a target is none of the classes"


def _cut(rows: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    return rows.view(shape + rows.shape[1:]).unbind(0)


class ResidentSource:
    """Batches gathered on the device; `finish` turns gathered rows into what the model takes."""

    def __init__(
        self,
        spec: DataSpec,
        train: Table | Windows,
        evaluation: Table | Windows,
        batch: tuple[int, int],
        context: DataContext,
        finish: Finish = as_stored,
        augment: Augment = NO_AUGMENT,
    ) -> None:
        self.spec = spec
        self.skipped: list[str] = []
        self.converted: dict[str, int] = {}
        self.notes: list[str] = []
        self._train, self._eval, self._finish, self._context = train, evaluation, finish, context
        self._batch, self._eval_batch = batch
        self._augment = augment
        self.batches_per_epoch = batches_per_epoch(len(train), self._batch, context.world)
        self._ahead = self._gathered_batches()

    def train(self, start: int) -> Iterator[Batch]:
        """Endless micro-batches of this rank, from micro-batch `start` of the run."""
        epoch, position = divmod(start, self.batches_per_epoch)
        while True:
            yield from self._epoch(epoch, position)
            epoch, position = epoch + 1, 0

    def batch(self, micro: int) -> Batch:
        """Micro-batch `micro` as `train(micro)` gives it first."""
        return next(self.train(micro))

    def _epoch(self, epoch: int, position: int) -> Iterator[Batch]:
        c = self._context
        rows = self._upload(epoch_rows(c.seed, epoch, len(self._train), self._batch, c.rank, c.world).copy())
        draws = None
        if self._augment.active:
            draws = self._upload(self._augment.draws(c.seed, epoch, len(self._train)))
        # Blocks start at the same positions whatever the resume point: alignment, and so rounding, never differs.
        first = position - position % self._ahead
        skip = position - first
        for block in torch.split(rows[first:], self._ahead):
            yield from islice(self._gather(block, draws), skip, None)
            skip = 0

    def _gather(self, block: Tensor, draws: Tensor | None) -> Iterator[Batch]:
        samples = block.view(-1)
        inputs, targets = self._finish(*self._train.select(samples))
        if draws is not None:
            inputs = moved(inputs, draws.index_select(0, samples))
        return map(Batch, _cut(inputs, block.shape), _cut(targets, block.shape))

    def _upload(self, numbers: NDArray[np.int64]) -> Tensor:
        """What one epoch needs of the host."""
        on_host = torch.from_numpy(numbers)
        if torch.device(self._context.device).type == "cuda":
            on_host = on_host.pin_memory()  # an upload from pageable memory would make the host wait for the device
        return on_host.to(self._context.device, non_blocking=True)

    def _gathered_batches(self) -> int:
        row = torch.zeros(1, dtype=torch.int64, device=self._context.device)
        inputs, _ = self._finish(*self._train.select(row))
        batch_bytes = self._batch * inputs.numel() * inputs.element_size()
        if batch_bytes % ALIGNMENT:
            return 1
        return max(1, GATHER_BYTES // batch_bytes)

    def eval(self) -> Iterator[Batch]:
        """This rank's share of the evaluation samples, each once; the last batch may be smaller."""
        span = rank_span(len(self._eval), self._context.rank, self._context.world)
        rows = torch.arange(span.start, span.stop, device=self._context.device)
        for block in torch.split(rows, self._eval_batch):
            if len(block):
                yield Batch(*self._finish(*self._eval.select(block)))

    def examine(self) -> Iterator[Look]:
        """Whether every number is finite and every target one of the classes."""
        for part, table in (("train", self._train), ("eval", self._eval)):
            for rows in torch.split(torch.arange(len(table), device=self._context.device), self._eval_batch):
                inputs, targets = table.select(rows)
                wrong = _wrong(inputs, targets, self.spec.num_classes)
                for row, (finite, inside) in zip(rows.tolist(), wrong, strict=True):
                    yield Look(part, f"{part} sample {row}", _said(finite, inside), ())

    def train_indices(self, micro: int) -> list[int]:
        """The training samples in this rank's micro-batch `micro`."""
        c = self._context
        found: list[int] = micro_indices(c.seed, micro, len(self._train), self._batch, c.rank, c.world).tolist()
        return found

    def sample_names(self, indices: Sequence[int]) -> list[str]:
        """None: rows of a table have no files."""
        return []

    def resident(self) -> list[Tensor]:
        """Both splits."""
        return [*self._train.tensors(), *self._eval.tensors()]

    def close(self) -> None:
        """Nothing is held beyond tensors."""
