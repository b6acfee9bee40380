"""Row 8: a float32 step of a net of matrix products on an AMD CPU, routed through oneDNN, against torch's own way."""

from __future__ import annotations

from functools import partial

from _cells import Cell, ratio
from _measure import Effort, interleaved, per_step_ms
from _nets import SMALL_GPT, SMALL_GPT_TOLD
from _row import main
from _runner import Steps

NETS: dict[str, tuple[str, ...]] = {
    "gpt": SMALL_GPT,
    "mlp": ("model=mlp", "model.width=1024", "model.depth=3", "data=digits", "data.batch_size=256"),
}
SIZES = {
    "gpt": SMALL_GPT_TOLD,
    "mlp": "MLP of three layers of 1,024, batch 256",
}
LIMIT = 0.70


def measure(effort: Effort) -> list[Cell]:
    """One cell for each net; where the probe routes nothing, the ratio is 1."""
    return [cell(name, words, effort) for name, words in NETS.items()]


def cell(name: str, words: tuple[str, ...], effort: Effort) -> Cell:
    """Both take turns of one step in one process."""
    steps = {way: Steps(*words, "device=cpu", "precision=fp32", f"trainer.onednn={way}") for way in ("auto", "false")}
    found = interleaved({way: partial(per_step_ms, s.run, 1) for way, s in steps.items()}, effort)
    what = f"{SIZES[name]}: the runner's float32 step with trainer.onednn=auto / with false, torch's default threads"
    return ratio(8, name, found["auto"], found["false"], LIMIT, what)


if __name__ == "__main__":
    main(measure, __doc__, repeats=20, budget_s=30)
