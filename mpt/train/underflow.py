"""Gradients that are 0 only because float16 has no number so small, told from those that are 0 by the model."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.build import Run
from mpt.train.again import gradients, kept_grads, no_trace, window
from mpt.train.buffers import Buffers
from mpt.train.faults import out_of_memory
from mpt.types import Batch

_FACTORS = (2.0**12, 2.0**24, 2.0**48, 2.0**96)
"""Of the scale: steps that bring back whatever float32 holds, and each what is too large for the one after it."""


def underflow_share(run: Run, buffers: Buffers, step: int) -> float | None:
    """Of the gradients that are not 0 at every scale, the share that is 0 at the present one, in the first micro-batch
    of attempt `step`; None where there is none, or no memory to look. Leaves no trace."""
    try:
        with kept_grads(run):
            _, batch = next(window(run, step))
            now = _at(run, buffers, batch, 1.0)
            gone = [torch.zeros_like(g, dtype=torch.bool) for g in now]
            for factor in _FACTORS:
                for was, here, larger in zip(gone, now, _at(run, buffers, batch, factor), strict=True):
                    was |= (here == 0) & (larger != 0) & larger.isfinite()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return None
    lost = sum(int(g.sum()) for g in gone)
    there = lost + sum(int((g != 0).sum()) for g in now)
    return lost / there if there else None


def _at(run: Run, buffers: Buffers, batch: Batch, factor: float) -> list[Tensor]:
    """Gradients at `factor` times the scale; the same random draws each time."""
    with no_trace(run, buffers):
        return gradients(run, batch, run.scaler.scale, factor)
