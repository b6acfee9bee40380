"""Row 7: steps of emulated low-bit formats against a float32 step on a CPU."""

from __future__ import annotations

from functools import partial

from _cells import Cell, ratio
from _measure import Effort, interleaved, per_step_ms
from _row import main
from _runner import Steps

LIMITS = {"fp8": 1.6, "mxfp8": 1.8, "nvfp4": 2.2}
NETS: dict[str, tuple[str, ...]] = {
    "resnet18": (
        *("model=resnet18", "data=synthetic_images", "data.limit=128"),
        *("data.image_size=112", "data.batch_size=8"),
    ),
    "gpt": (
        *("model=gpt", "model.layers=2", "model.width=256", "model.heads=4", "model.context=128"),
        *("data=shakespeare", "data.batch_size=4"),
    ),
}
SIZES = {
    "resnet18": "ResNet-18, batch 8, 112x112, channels_last",
    "gpt": "GPT of 2 layers, width 256, context 128, batch 4",
}


def measure(effort: Effort) -> list[Cell]:
    """One cell for each net and policy; all policies of a net take turns of one step in one process."""
    return [cell for name in NETS for cell in cells(name, effort)]


def cells(name: str, effort: Effort) -> list[Cell]:
    steps = {p: Steps(*NETS[name], "device=cpu", f"precision={p}") for p in ("fp32", *LIMITS)}
    found = interleaved({p: partial(per_step_ms, s.run, 1) for p, s in steps.items()}, effort)
    return [
        ratio(7, f"{name} {p}", found[p], found["fp32"], limit, _what(name, p, steps[p].of.plan.mechanism.low_how))
        for p, limit in LIMITS.items()
    ]


def _what(name: str, policy: str, how: str) -> str:
    return f"{SIZES[name]}: the runner's step in {policy} ({how}) / in fp32, torch's default threads"


if __name__ == "__main__":
    main(measure, __doc__, repeats=10, budget_s=30)
