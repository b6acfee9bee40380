"""Row 9: peak resident memory of a run on a CPU against that of an expert's loop, each in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from _cells import Cell, difference
from _measure import Effort, interleaved
from _row import main

LIMIT_MB = 1.0
NETS = ("resnet18", "gpt")
STEADY = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""glibc's threshold, held where it starts: when it is left to grow, freed tensors stay resident by chance."""
WHAT = (
    "{net}, sizes of row 4, 6 steps: peak resident memory without libraries' code (VmHWM - RssFile) of a process that "
    "does all of `mpt train` (audit, record, evaluation, checkpoint) - that of one that runs the expert's loop and "
    "saves once; both import the same modules, multiply float32 by the same library (trainer.onednn=false) and use one "
    "thread"
)


def measure(effort: Effort) -> list[Cell]:
    """One cell for each net."""
    return [cell(net, effort) for net in NETS]


def cell(net: str, effort: Effort) -> Cell:
    """Processes take turns."""
    programs = {who: partial(peak_mb, who, net) for who in ("runner", "expert")}
    found = interleaved(programs, effort, warm_up=False)
    return difference(9, net, found["runner"], found["expert"], LIMIT_MB, WHAT.format(net=net), unit="MB")


def peak_mb(who: str, net: str) -> float:
    """Largest resident memory of one process. Units: 10^6 bytes."""
    command = [sys.executable, str(Path(__file__).with_name("_peak.py")), who, net]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **STEADY})
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["peak"]) / 1e6


if __name__ == "__main__":
    main(measure, __doc__, repeats=5, budget_s=40)
