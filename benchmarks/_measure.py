"""How things are timed: programs take turns, the order alternates, warm-up is excluded."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from mpt.bench.spread import MIN_REPEATS as MIN_REPEATS
from mpt.bench.spread import Effort as Effort
from mpt.bench.spread import interleaved as interleaved
from mpt.bench.spread import per_step_ms as per_step_ms


def process_s(command: Sequence[str], *, cwd: str | None = None) -> float:
    """Wall-clock seconds of a fresh process, from its start to its end.

    Raises: RuntimeError with what it said when it fails.
    """
    start_s = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=os.environ)
    spent_s = time.perf_counter() - start_s
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {done.stderr[-2000:]}")
    return spent_s
