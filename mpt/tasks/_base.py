"""What every task is: a loss as a sum and a count, and metrics that sums make."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from mpt.types import Batch


class Task(Protocol):
    """Turns a model's output and a batch into a loss and metrics, always in float32 or more.

    `headline` is the metric that decides which checkpoint is best, `mode` whether more or less of it is better.
    """

    @property
    def name(self) -> str: ...

    @property
    def headline(self) -> str: ...

    @property
    def mode(self) -> Literal["min", "max"]: ...

    def count(self, batch: Batch) -> int:
        """Targets that `loss_sum` sums over."""
        ...

    def check(self, output: object, batch: Batch) -> None:
        """Raises: ModelError when the output does not fit. Reads the device: called before training only."""
        ...

    def loss_sum(self, output: Tensor, batch: Batch) -> Tensor:
        """The loss, 0-dim float32, summed over targets."""
        ...

    def sums(self, output: Tensor, batch: Batch) -> Tensor:
        """What `metrics` needs of an evaluation batch: 1-D, on the device, float64 where it has that."""
        ...

    def metrics(self, sums: list[float], count: int) -> dict[str, float]:
        """Metrics by name, from sums over all batches and the number of targets."""
        ...
