"""Evaluation: every sample once, sums on the device, one read at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from mpt.data._context import DataSource
from mpt.precision.policy import Policy
from mpt.tasks._base import Task
from mpt.types import Batch


class CutOff(Exception):
    """Someone asked to stop before the evaluation was over; never leaves this package."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    policy: Policy,
    task: Task,
    data: DataSource,
    precision: str,
    stops: Callable[[], bool] = lambda: False,
    fetched: Callable[[Iterator[Batch]], Iterator[Batch]] = iter,
) -> dict[str, float]:
    """The task's metrics over the evaluation split, in `precision` (`same` as training, or `fp32`).

    Batches are taken through `fetched`. Raises: CutOff when `stops` says so between two of them.
    Each module is left in the mode that it had; random states and buffers are not touched.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    sums: torch.Tensor | None = None
    count = 0
    try:
        for batch in fetched(iter(data.eval())):
            if stops():
                raise CutOff
            with policy.evaluate(precision):
                output = model(batch.inputs)
            part = task.sums(output, batch)
            sums = part if sums is None else sums + part
            count += task.count(batch)
    finally:
        for module, training in modes:
            module.training = training
    return task.metrics(sums.tolist() if sums is not None else [], count)
