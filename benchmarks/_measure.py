"""How things are timed: programs take turns, the order alternates, warm-up is excluded."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MIN_REPEATS = 5


@dataclass(frozen=True)
class Effort:
    """How much a row may spend: repeats of each program, and seconds after which it makes do with fewer."""

    repeats: int = 40
    budget_s: float = 60.0

    def enough(self, done: int, since_s: float) -> bool:
        """Whether `done` repeats suffice; never fewer than five."""
        late = time.perf_counter() - since_s > self.budget_s
        return done >= MIN_REPEATS and (late or done >= self.repeats)


def interleaved(
    programs: Mapping[str, Callable[[], float]], effort: Effort, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Figures that each program returned, one a repeat; a first round is warm-up and dropped."""
    figures: dict[str, list[float]] = {name: [] for name in programs}
    since_s = time.perf_counter()
    for program in programs.values() if warm_up else ():
        program()
    done = 0
    while not effort.enough(done, since_s):
        names = list(programs) if done % 2 == 0 else list(reversed(programs))
        for name in names:
            figures[name].append(programs[name]())
        done += 1
    return figures


def per_step_ms(run: Callable[[int], object], steps: int, wait: Callable[[], object] | None = None) -> float:
    """Milliseconds a step of `run(steps)`, until `wait` (the device) is done."""
    start_s = time.perf_counter()
    run(steps)
    if wait is not None:
        wait()
    return 1e3 * (time.perf_counter() - start_s) / steps


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
