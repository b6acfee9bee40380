"""Micro-batches that don't fit into memory, computed in parts; the batch of an update stays as it is."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mpt.build import Run
from mpt.telemetry.clock import Clock
from mpt.train.buffers import Buffers
from mpt.types import Batch


class Fetched:
    """The micro-batches of one attempt, each in `parts` parts, fetched when its turn comes; the clock sees the wait.

    `begun` once the first was given; `exhausted` once all were computed: what fails after that failed in the update.
    """

    def __init__(self, batches: Iterator[Batch], count: int, parts: int, clock: Clock) -> None:
        self._batches, self._count, self._parts, self._clock = batches, count, parts, clock
        self.begun = self.exhausted = False

    def __len__(self) -> int:
        return self._count * self._parts

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self._count):
            self._clock.fetch()
            batch = next(self._batches)
            self._clock.fetched()
            self.begun = True
            if self._parts == 1:
                yield batch
            else:
                yield from cut(batch, self._parts)
        self.exhausted = True


def cut(batch: Batch, parts: int) -> Iterator[Batch]:
    """The batch in at most `parts` parts of nearly equal size, in order, without a copy."""
    return map(Batch, torch.tensor_split(batch.inputs, parts), torch.tensor_split(batch.targets, parts))


def undo(run: Run, buffers: Buffers) -> None:
    """Buffers are as before the attempt, gradients are gone, and a GPU's free blocks are one again."""
    for weight in (*run.policy.weights, *run.policy.masters):
        weight.grad = None
    buffers.restore(torch.ones((), device=run.device))
    if run.device.type == "cuda":
        torch.cuda.empty_cache()


def told(samples: int, parts: int) -> str:
    """What the user reads of it."""
    return (
        f"memory ran out: a micro-batch of {samples} is computed in {parts} parts of {-(-samples // parts)}; "
        "the batch of an update is the same, batch norm sees the parts"
    )


def smaller(samples: int, parts: int) -> int | None:
    """Twice as many parts, or None where each is a single sample already."""
    return None if parts >= samples else min(2 * parts, samples)
