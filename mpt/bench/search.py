"""The largest batch that fits: doubling, then bisecting."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from mpt.build import Run
from mpt.telemetry.device import wait
from mpt.train.engine import Engine
from mpt.train.faults import out_of_memory
from mpt.types import Batch

MOST = 2**20


def largest(fits: Callable[[int], bool], start: int = 1, most: int = MOST) -> int:
    """The largest number up to `most` for which `fits` holds, which holds for all below it; 0 where for none."""
    low, high = 0, max(1, min(start, most))
    while fits(high):
        low = high
        if high == most:
            return most
        high = min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def steps_with(run: Run, engine: Engine, batch: Batch, size: int) -> bool:
    """Whether two steps with a micro-batch of `size` go without running out of memory; the batch's samples repeat."""
    window = None
    try:
        window = [resized(batch, size)] * run.plan.length.accumulate
        for _ in range(2):
            engine.stepper(window)
        wait(run.device)
        return True
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return False
    finally:
        window = None
        for weight in run.policy.weights:
            weight.grad = None
        if run.device.type == "cuda":
            gc.collect()  # a failed pass leaves cycles that hold on to its tensors
            torch.cuda.empty_cache()


def resized(batch: Batch, size: int) -> Batch:
    """A batch of `size` samples, in the layout of this one."""
    rows = torch.arange(size, device=batch.targets.device) % len(batch.targets)
    inputs = batch.inputs.index_select(0, rows)
    if inputs.dim() == 4 and batch.inputs.is_contiguous(memory_format=torch.channels_last):
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return Batch(inputs, batch.targets.index_select(0, rows))
