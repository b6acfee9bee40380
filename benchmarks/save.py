"""Row 18: how long the loop waits for a save that is written beside it, against one that it waits out."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _cells import Cell, ratio
from _measure import Effort, interleaved
from _row import main

from mpt.checkpoint import CheckpointStore, Saver

LIMIT = 0.15
PARAMS = 11_000_000
"""ResNet-18's; with two moments in float32 a checkpoint of 132 MB."""
TENSORS = 62
WHAT = f"weights and two moments of {PARAMS / 1e6:.0f}M float32 parameters, to a real file; second save and later"


def state() -> dict[str, Any]:
    """Weights and moments, in as many tensors as ResNet-18 has."""
    size = PARAMS // TENSORS
    return {part: [torch.randn(size) for _ in range(TENSORS)] for part in ("model", "exp_avg", "exp_avg_sq")}


def stall_ms(saver: Saver, given: dict[str, Any]) -> float:
    """Milliseconds that a save keeps its caller; the writing that goes on beside it is over when this returns."""
    start_s = time.perf_counter()
    saver.save(given, step=1, update=1)
    spent_s = time.perf_counter() - start_s
    saver.wait()
    return 1e3 * spent_s


def measure(effort: Effort) -> list[Cell]:
    """The ratio of both."""
    given = state()
    with tempfile.TemporaryDirectory() as temp:
        beside = Saver(CheckpointStore(Path(temp) / "a", keep=1), background=True)
        waited = Saver(CheckpointStore(Path(temp) / "b", keep=1), background=False)
        programs = {"beside": lambda: stall_ms(beside, given), "waited out": lambda: stall_ms(waited, given)}
        figures = interleaved(programs, effort)
    return [ratio(18, "stall of a save / synchronous save", figures["beside"], figures["waited out"], LIMIT, WHAT)]


if __name__ == "__main__":
    main(measure, __doc__, repeats=10)
