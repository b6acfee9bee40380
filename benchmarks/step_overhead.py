"""Row 1: a step of the whole runner, every default record on, against an expert's bare loop and frameworks' loops.

Frameworks: pip install lightning accelerate transformers timm; one that is not installed is told as not measured.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from _cells import Cell, ratio
from _frameworks import Task, installed, turns
from _measure import Effort, per_step_ms
from _row import main
from _runner import expert, table, twin, whole_run

from mpt.build import Run

LIMIT = 1.05
NETS: dict[str, tuple[str, ...]] = {
    "mlp": ("model=mlp", "model.width=64"),
    "tiny cnn": ("model=small_cnn", "model.width=4", "data.batch_size=16"),
    "small_cnn": ("model=small_cnn",),
}
OTHERS_ON = ("mlp", "tiny cnn")
BLOCKS = {"mlp": 100, "tiny cnn": 100, "small_cnn": 50}
"""Steps in a turn: as many log points of the runner (trainer.log_every=50) fall into each."""
WHAT = (
    "whole loop of the runner on digits (clock, history, steps.jsonl, log points, schedule, gradient norm, "
    "skip of non-finite steps, buffers restored on a skip) / hand-written loop with fused AdamW, indexed in-memory "
    "tensors, the same schedule and batches, the loss read every 50 steps; one thread"
)


STEPS = 2000
"""Batches in memory; their order starts over then."""
FRAMEWORK_TURNS = 10
"""Of each framework at most: a turn starts it anew, which takes longer than its steps."""
OTHER = (
    "the same whole loop of the runner / the same net, batches in memory, AdamW and rates in the loop that the "
    "framework documents, its records at their defaults, timed after 20 steps and without its start and end"
)


def measure(effort: Effort) -> list[Cell]:
    """A cell of each net against the expert, then of the first two against each framework that is installed.

    In this order: once Fabric is imported, every later step of `torch.optim` in the process takes half as long again.
    """
    here, missing = installed()
    if missing:
        print(f"not measured, since not installed: {', '.join(missing)}", file=sys.stderr)
    found = [against_expert(name, words, effort) for name, words in NETS.items()]
    return found + [cell for name in OTHERS_ON if here for cell in against_frameworks(name, NETS[name], effort)]


def against_expert(name: str, words: tuple[str, ...], effort: Effort) -> Cell:
    """Runner and expert take turns in one process."""
    times: list[float] = []
    block = BLOCKS[name]

    def peer(run: Run) -> Callable[[], object]:
        by_hand = expert(run, STEPS)
        return lambda: times.append(per_step_ms(by_hand.run, block))

    ours = whole_run([*words, "device=cpu"], block=block, blocks=effort.repeats, peer=peer)
    return ratio(1, name, ours, times[1 : 1 + len(ours)], LIMIT, WHAT)


def against_frameworks(name: str, words: tuple[str, ...], effort: Effort) -> list[Cell]:
    """Runner and all frameworks take turns in one process."""
    times: dict[str, list[float]] = {}
    block = BLOCKS[name]

    def peers(run: Run) -> Callable[[], object]:
        rates, rows = [run.lr(update) for update in range(STEPS)], table(run, STEPS)
        others = turns(lambda: Task(lambda: twin(run), rows, rates, run.cfg.optimizer.weight_decay, block))

        def have_turns() -> None:
            for other, take in others.items():
                times.setdefault(other, []).append(take())
            gc.collect()  # what they left behind is no work of the runner

        return have_turns

    blocks = min(effort.repeats, FRAMEWORK_TURNS)
    ours = whole_run([*words, "device=cpu"], block=block, blocks=blocks, peer=peers)
    return [ratio(1, f"{name}, {other}", ours, theirs[1:], None, OTHER) for other, theirs in times.items()]


if __name__ == "__main__":
    main(measure, __doc__)
