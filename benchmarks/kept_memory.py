"""Row 23: a CPU step in a process that keeps freed memory against one under malloc as it comes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from _cells import Cell, ratio
from _measure import Effort, interleaved
from _row import main

STEPS = {"small_cnn": 100, "resnet18": 8, "gpt": 6}
AS_IT_COMES = {"MALLOC_PERTURB_": "0"}
"""Changes nothing in malloc; mpt then leaves it as the environment has it."""
WHAT = (
    "{net} of row 12, float32: the runner's step in a process that keeps freed memory (mallopt, as every run on a CPU "
    "does) / in one under glibc's own thresholds"
)


def measure(effort: Effort) -> list[Cell]:
    """One cell for each net."""
    return [cell(net, effort) for net in STEPS]


def cell(net: str, effort: Effort) -> Cell:
    """Processes take turns."""
    programs = {"ours": partial(step_ms, net, {}), "peer": partial(step_ms, net, AS_IT_COMES)}
    found = interleaved(programs, effort, warm_up=False)
    return ratio(23, net, found["ours"], found["peer"], None, WHAT.format(net=net))


def step_ms(net: str, said: dict[str, str]) -> float:
    """Of a fresh process."""
    command = [sys.executable, str(Path(__file__).with_name("_steps.py")), net, str(STEPS[net])]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))} | said
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main(measure, __doc__, repeats=7, budget_s=60)
