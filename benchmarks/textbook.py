"""Row 2: a step of the whole runner against the textbook loop, AdamW with clipping."""

from __future__ import annotations

from collections.abc import Callable

from _cells import Cell, ratio
from _measure import Effort, per_step_ms
from _peers import Textbook
from _row import main
from _runner import table, twin, whole_run
from step_overhead import BLOCKS, NETS

from mpt.build import Run

LIMITS = {"mlp": 0.75, "tiny cnn": 0.75, "small_cnn": None}
"""small_cnn at its default size is told without a target: convolutions, which both share, are most of its step."""
CLIP_NORM = 1.0
OURS = "whole loop of the runner on digits, float32, trainer.clip_norm=1, every default record on"
THEIRS = "default AdamW, clip_grad_norm_, {scaler}, LambdaLR, DataLoader over a TensorDataset, .item() every 50 steps"


def measure(effort: Effort) -> list[Cell]:
    """Each net against the loop with GradScaler, as the row is defined, and without it."""
    return [
        cell(name, kind, scaled, effort)
        for name in NETS
        for kind, scaled in (("GradScaler", True), ("no scaler", False))
    ]


def cell(name: str, kind: str, scaled: bool, effort: Effort) -> Cell:
    """Runner and textbook take turns in one process."""
    times: list[float] = []
    block = BLOCKS[name]

    def peer(run: Run) -> Callable[[], object]:
        rates = [run.lr(update) for update in range(2000)]
        decay = run.cfg.optimizer.weight_decay
        loop = Textbook(twin(run), table(run, 50), rates, weight_decay=decay, clip_norm=CLIP_NORM, scaled=scaled)
        return lambda: times.append(per_step_ms(loop.run, block))

    words = (*NETS[name], "device=cpu", f"trainer.clip_norm={CLIP_NORM}")
    ours = whole_run(list(words), block=block, blocks=effort.repeats, peer=peer)
    what = f"{OURS} / {THEIRS.format(scaler='GradScaler' if scaled else 'no GradScaler')}; one thread"
    return ratio(2, f"{name} {kind}", ours, times[1 : 1 + len(ours)], LIMITS[name], what)


if __name__ == "__main__":
    main(measure, __doc__, repeats=20)
