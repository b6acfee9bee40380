"""Row 1: a step of the whole runner, every default record on, against an expert's bare loop, on tiny nets."""

from __future__ import annotations

from collections.abc import Callable

from _cells import Cell, ratio
from _measure import Effort, per_step_ms
from _row import main
from _runner import expert, whole_run

from mpt.build import Run

LIMIT = 1.05
NETS: dict[str, tuple[str, ...]] = {
    "mlp": ("model=mlp", "model.width=64"),
    "tiny cnn": ("model=small_cnn", "model.width=4", "data.batch_size=16"),
    "small_cnn": ("model=small_cnn",),
}
BLOCKS = {"mlp": 100, "tiny cnn": 100, "small_cnn": 50}
"""Steps in a turn: as many log points of the runner (trainer.log_every=50) fall into each."""
WHAT = (
    "whole loop of the runner on digits (clock, history, steps.jsonl, log points, schedule, gradient norm, "
    "skip of non-finite steps, buffers restored on a skip) / hand-written loop with fused AdamW, indexed in-memory "
    "tensors, the same schedule and batches, the loss read every 50 steps; one thread"
)


def measure(effort: Effort) -> list[Cell]:
    """One cell for each net."""
    return [cell(name, words, effort) for name, words in NETS.items()]


def cell(name: str, words: tuple[str, ...], effort: Effort) -> Cell:
    """Runner and expert take turns in one process."""
    times: list[float] = []
    block = BLOCKS[name]

    def peer(run: Run) -> Callable[[], object]:
        by_hand = expert(run, 2000)
        return lambda: times.append(per_step_ms(by_hand.run, block))

    ours = whole_run([*words, "device=cpu"], block=block, blocks=effort.repeats, peer=peer)
    return ratio(1, name, ours, times[1 : 1 + len(ours)], LIMIT, WHAT)


if __name__ == "__main__":
    main(measure, __doc__)
