"""Row 14: from the command to the first step on digits, less what importing torch takes, in fresh processes.

The first step is over when its line stands in steps.jsonl: with trainer.max_steps=1 it is written at once, and the
file's time of modification tells when.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _cells import Cell, difference
from _measure import Effort, interleaved, process_s
from _row import main
from help import program

LIMIT_S = 0.7


def measure(effort: Effort) -> list[Cell]:
    """One cell; the two kinds of process take turns."""
    programs: dict[str, Callable[[], float]] = {
        "mpt": first_step_s,
        "torch": partial(process_s, [sys.executable, "-c", "import torch"]),
    }
    found = interleaved(programs, effort)
    what = (
        "`mpt train trainer.max_steps=1` (digits, small_cnn) from its start until the first step is recorded "
        "- `python -c 'import torch'` from its start to its end"
    )
    return [difference(14, "digits", found["mpt"], found["torch"], LIMIT_S, what, unit="s")]


def first_step_s() -> float:
    """Seconds from the start of the process to the first step's line."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [*program(), "train", "trainer.max_steps=1", "device=cpu", f"run_dir={run_dir}"]
        start_s = time.time()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {done.stderr[-2000:]}")
        return (run_dir / "steps.jsonl").stat().st_mtime - start_s


if __name__ == "__main__":
    main(measure, __doc__, repeats=10)
