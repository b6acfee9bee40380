"""What a data set is told about the run, and what it hands back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mpt.types import Batch, DataSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class DataContext:
    """Where batches go and which part of them is this rank's."""

    seed: int
    device: str | torch.device
    rank: int = 0
    world: int = 1
    channels_last: bool = False


class Look(NamedTuple):
    """What `mpt data check` says of a sample: why it can't be trained on (`wrong`), and what is odd about it."""

    part: str
    name: str
    wrong: str | None
    odd: tuple[str, ...]


class DataSource(Protocol):
    """Batches of one data set, in an order that only (seed, epoch, rank, world) decide."""

    spec: DataSpec
    batches_per_epoch: int
    skipped: list[str]
    """Samples that could not be read and were replaced (data.on_error=skip)."""
    converted: dict[str, int]
    """Distinct samples that were changed to what the model takes, by what was done (`L converted to RGB`)."""
    notes: list[str]
    """What is odd about the data but can be trained on; worth a line to the user."""

    def train(self, start: int) -> Iterator[Batch]:
        """Endless micro-batches of this rank, from micro-batch `start` of the run."""
        ...

    def batch(self, micro: int) -> Batch:
        """Micro-batch `micro` as `train(micro)` gives it first, read in this process without workers."""
        ...

    def eval(self) -> Iterator[Batch]:
        """This rank's share of the evaluation samples, each once. Raises: RunFault when none can be read."""
        ...

    def examine(self) -> Iterator[Look]:
        """Every sample of both parts, read in full; for `mpt data check`."""
        ...

    def train_indices(self, micro: int) -> list[int]:
        """The training samples in this rank's micro-batch `micro`."""
        ...

    def sample_names(self, indices: Sequence[int]) -> list[str]:
        """What these training samples are called in messages: their files; none where they have none."""
        ...

    def resident(self) -> list[Tensor]:
        """Tensors that stay on the training device; none where samples are streamed."""
        ...

    def close(self) -> None:
        """Ends worker processes; harmless when called twice."""
        ...
