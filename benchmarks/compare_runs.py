"""Row 16: seconds of `mpt compare` on 12 runs of 100,000 steps, from the command to all its files."""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
from pathlib import Path

from _cells import Cell, value
from _measure import Effort, interleaved, process_s
from _row import main

from mpt.record.writer import RunWriter
from mpt.types import StepRow

LIMIT_S = 5.0
RUNS, STEPS = 12, 100_000
PRECISIONS = ("fp32", "bf16", "fp16")
WHAT = f"{RUNS} runs of {STEPS:,} steps, 3 precisions x 4 seeds, skips and all digits: terminal, HTML, Markdown, JSON"


def write_run(folder: Path, precision: str, seed: int) -> None:
    """A run folder as `mpt train` leaves it, with numbers drawn at random."""
    draw = random.Random(f"{precision}-{seed}").random
    summary = {"final": {"accuracy": 0.9 + 0.01 * draw()}, "best": {"accuracy": 0.92}, "seed": seed}
    speed = {"samples_per_s": 1000 + draw(), "step_p50_ms": 10 + draw()}
    with RunWriter(folder) as writer:
        writer.text("config.yaml", f"precision: {{name: {precision}}}\nseed: {seed}\n")
        writer.json("plan", {"schema": "mpt.plan/1", "precision": precision, "data": {"n_eval": 10_000}})
        writer.steps(_row(i, draw, precision == "fp16" and i % 977 == 0) for i in range(1, STEPS + 1))
        memory = {"peak_bytes": 10_000_000, "params_bytes": 1_000_000}
        writer.json("summary", {"schema": "mpt.summary/1", **summary, "speed": speed, "memory": memory})
        writer.finish("DONE", f"{STEPS} steps")


def _row(step: int, draw: object, skipped: bool) -> StepRow:
    assert callable(draw)
    loss, norm = 2 / step**0.3 + draw() / 10, math.inf if skipped else draw()
    return StepRow(step, step, not skipped, loss, draw() * 1e-3, norm, 65536.0, 64, draw() / 100, draw() / 1e5)


def compare_s(folder: Path) -> float:
    """Seconds of a fresh process; checks that it said something."""
    spent_s = process_s([sys.executable, "-m", "mpt", "compare", str(folder)])
    document = json.loads((folder / "compare.json").read_text())
    assert len(document["comparisons"]) == len(PRECISIONS) - 1, "every precision is compared with fp32"
    return spent_s


def measure(effort: Effort) -> list[Cell]:
    """Seconds of the command."""
    with tempfile.TemporaryDirectory() as temp:
        for n in range(RUNS):
            write_run(Path(temp) / str(n), PRECISIONS[n % 3], n // 3)
        figures = interleaved({"ours": lambda: compare_s(Path(temp))}, effort)
    return [value(16, "compare of 12 runs of 100,000 steps", figures["ours"], LIMIT_S, WHAT, unit="s")]


if __name__ == "__main__":
    main(measure, __doc__, repeats=5)
