"""Row 6: an emulated float16 step on a CPU against a float32 step, and against torch's own float16 kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from _cells import Cell, ratio
from _measure import Effort, interleaved, per_step_ms
from _peers import Expert
from _row import main
from _runner import Steps, table, twin
from half_cpu import NETS, SIZES

TO_FLOAT32, TO_NATIVE = 1.25, 0.15
SMALL: dict[str, tuple[str, ...]] = {
    "resnet18": ("model=resnet18", "data=synthetic_images", "data.image_size=64", "data.batch_size=8", "data.limit=64"),
    "gpt": (
        *("model=gpt", "model.layers=4", "model.width=256", "model.heads=4", "model.context=64"),
        *("data=shakespeare", "data.batch_size=4"),
    ),
}
"""Sizes at which a native step takes seconds and not a minute."""
SMALL_SIZES = {
    "resnet18": "ResNet-18, batch 8, 64x64, channels_last",
    "gpt": "GPT of 4 layers, width 256, context 64, batch 4",
}


def measure(effort: Effort) -> list[Cell]:
    """Two cells for each net."""
    return [to_float32(name, effort) for name in NETS] + [to_native(name, effort) for name in SMALL]


def to_float32(name: str, effort: Effort) -> Cell:
    """Both precisions take turns of one step in one process."""
    steps = {precision: Steps(*NETS[name], "device=cpu", f"precision={precision}") for precision in ("fp16", "fp32")}
    found = interleaved({p: partial(per_step_ms, s.run, 1) for p, s in steps.items()}, effort)
    what = f"{SIZES[name]}: the runner's step in fp16 ({steps['fp16'].mechanism}) / in fp32, torch's default threads"
    return ratio(6, f"{name} / fp32", found["fp16"], found["fp32"], TO_FLOAT32, what)


def to_native(name: str, effort: Effort) -> Cell:
    """The emulated step against a bare loop under torch.autocast("cpu", float16)."""
    ours = Steps(*SMALL[name], "device=cpu", "precision=fp16")
    programs = {"ours": partial(per_step_ms, ours.run, 1), "native": partial(per_step_ms, native(ours), 1)}
    found = interleaved(programs, effort)
    what = (
        f"{SMALL_SIZES[name]}: the runner's emulated fp16 step / a bare step under torch.autocast('cpu', float16) with "
        "fused AdamW, mpt's op policy and no loss scaling, torch's default threads"
    )
    return ratio(6, f"{name} / native fp16", found["ours"], found["native"], TO_NATIVE, what)


def native(like: Steps) -> Callable[[int], None]:
    """An expert's loop over the same batches in torch's float16, without loss scaling or record."""
    run = like.of
    rates = [run.lr(update) for update in range(8)]
    half = torch.autocast("cpu", dtype=torch.float16)
    return Expert(twin(run), table(run, 8), rates, weight_decay=run.cfg.optimizer.weight_decay, autocast=half).run


if __name__ == "__main__":
    main(measure, __doc__, repeats=10, budget_s=20)
