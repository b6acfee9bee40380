"""Row 5: a bfloat16 step against a float32 step of the runner on a CPU, native kernels."""

from __future__ import annotations

from functools import partial

from _cells import Cell, ratio
from _measure import Effort, interleaved, per_step_ms
from _nets import SMALL_GPT, SMALL_GPT_TOLD
from _row import main
from _runner import Steps

NETS: dict[str, tuple[str, ...]] = {
    "resnet18": (
        *("model=resnet18", "data=synthetic_images", "data.limit=128"),
        *("data.image_size=112", "data.batch_size=32"),
    ),
    "gpt": SMALL_GPT,
}
SIZES = {
    "resnet18": "ResNet-18, batch 32, 112x112, channels_last",
    "gpt": SMALL_GPT_TOLD,
}
LIMITS = {"resnet18": 0.65, "gpt": 0.42}


def measure(effort: Effort) -> list[Cell]:
    """One cell for each net."""
    return [cell(name, words, effort) for name, words in NETS.items()]


def cell(name: str, words: tuple[str, ...], effort: Effort) -> Cell:
    """Both precisions take turns of one step in one process."""
    plain = (*words, "device=cpu")
    as_torch = {"bf16": (), "fp32": ("trainer.onednn=false",)}  # float32 as torch multiplies it, not as row 8 makes it
    steps = {p: Steps(*plain, f"precision={p}", *more) for p, more in as_torch.items()}
    found = interleaved({p: partial(per_step_ms, s.run, 1) for p, s in steps.items()}, effort)
    what = (
        f"{SIZES[name]}: the runner's step in bf16 ({steps['bf16'].mechanism}) / in fp32 with trainer.onednn=false, "
        "torch's default threads"
    )
    return ratio(5, name, found["bf16"], found["fp32"], LIMITS[name], what)


if __name__ == "__main__":
    main(measure, __doc__, repeats=20, budget_s=40)
