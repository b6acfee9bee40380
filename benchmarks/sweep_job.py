"""Row 15: what one more job of an in-process sweep costs beyond its steps; fresh processes beside it."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from _cells import Cell, value
from _measure import Effort, interleaved
from _row import main

from mpt.cli import main as mpt
from mpt.record.reader import read_run

LIMIT_MS = 45.0
JOBS = 12
WORDS = ("device=cpu", "model=mlp", "trainer.max_steps=5", "trainer.eval_every=0")
WHAT = (
    f"(sweep of {JOBS} - sweep of 2) / {JOBS - 2} seeds of an MLP on digits, minus the steps' own time; "
    "evaluation and a checkpoint are in it"
)


def sweep(folder: Path, jobs: int, *flags: str) -> tuple[float, float]:
    """Seconds of a sweep, and of all its steps."""
    quiet = io.StringIO()
    start_s = time.perf_counter()
    with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
        code = mpt(["train", "-m", *flags, *WORDS, f"seed=range(0,{jobs})", f"hydra.sweep.dir={folder}"])
    spent_s = time.perf_counter() - start_s
    assert code == 0, quiet.getvalue()
    return spent_s, sum(sum(read_run(folder / str(n)).steps.time_s) for n in range(jobs))


def cost_ms(temp: Path, fresh: Callable[[], int], jobs: int, *flags: str) -> float:
    """Milliseconds of a job beyond its steps."""
    few, few_steps = sweep(temp / str(fresh()), 2, *flags)
    many, many_steps = sweep(temp / str(fresh()), jobs, *flags)
    return 1e3 * ((many - few) - (many_steps - few_steps)) / (jobs - 2)


def measure(effort: Effort) -> list[Cell]:
    """Both ways."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    number = count()
    with tempfile.TemporaryDirectory() as temp:
        place, fresh = Path(temp), number.__next__
        here = interleaved({"ours": lambda: cost_ms(place, fresh, JOBS, "--in-process")}, effort)
        apart = interleaved({"ours": lambda: cost_ms(place, fresh, 3)}, Effort(5, effort.budget_s))
    return [
        value(15, "one more job, in one process", here["ours"], LIMIT_MS, WHAT, unit="ms"),
        value(
            15, "one more job, in a fresh process", apart["ours"], None, "the same, each in its own process", unit="ms"
        ),
    ]


if __name__ == "__main__":
    main(measure, __doc__, repeats=8)
