"""The passes of a step made once more, to look at them: no number of the run is another afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mpt import rng
from mpt.build import Run
from mpt.train.buffers import Buffers
from mpt.train.step import start_backward
from mpt.types import Batch


def window(run: Run, step: int) -> Iterator[tuple[int, Batch]]:
    """The micro-batches of attempt `step` (1-based), each with its number."""
    for micro in run.plan.length.micros(step - 1):
        yield micro, run.data.batch(micro)


def gradients(run: Run, batch: Batch, scale: Tensor, factor: float = 1.0) -> list[Tensor]:
    """Those of all weights that the batch reaches, at a loss scale of `factor` · `scale`; they lie in `.grad` too."""
    for weight in run.policy.weights:
        weight.grad = None
    with run.policy.forward():
        output = run.model(batch.inputs)
    loss = run.task.loss_sum(output, batch)
    with run.policy.backward():
        start_backward(loss, scale * (run.cfg.task.loss_weight * factor / run.task.count(batch)))
    return [weight.grad for weight in run.policy.weights if weight.grad is not None]


@contextmanager
def kept_grads(run: Run) -> Iterator[None]:
    """The gradients that weights have now are theirs afterwards."""
    kept = [(weight, weight.grad) for weight in run.policy.weights]
    try:
        yield
    finally:
        for weight, grad in kept:
            weight.grad = grad


@contextmanager
def no_trace(run: Run, buffers: Buffers) -> Iterator[None]:
    """Buffers and random states are afterwards what they were."""
    state = rng.capture(run.device)
    buffers.keep()
    try:
        yield
    finally:
        with torch.no_grad():
            buffers.restore(torch.ones((), device=run.device))
        rng.restore(state, run.device)
