"""Where the time of some steps goes, by torch's profiler: a trace to look at, and a table."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

SCHEMA = "mpt.profile/1"
TRACE = "profile-trace.json.gz"
"""What chrome://tracing and perfetto.dev show."""
_ROWS = 40
W = TypeVar("W")
A = TypeVar("A")


class Profile:
    """Profiles `steps` attempts from `first` on; `told` gets the table once they are over.

    Raises: OSError where the trace can't be written.
    """

    def __init__(
        self, device: str, first: int, steps: int, folder: Path, told: Callable[[dict[str, Any]], object]
    ) -> None:
        self._cuda = device == "cuda"
        self._first, self._last, self._folder, self._told = first, first + steps - 1, folder, told
        self._profiler: Any = None

    def step(self, number: int, window: W, attempt: Callable[[W], A]) -> A:
        """attempt(window), seen where its number is among those to be profiled."""
        if number == self._first and self._profiler is None:  # a step may be made anew
            self._profiler = profiler(self._cuda)
            self._profiler.start()
        result = attempt(window)
        if self._profiler is not None and number >= self._last:
            self.finish(number)
        return result

    def slows(self, number: int) -> bool:
        """Whether that attempt is profiled, or ends with the trace being written."""
        return self._first <= number <= self._last

    def finish(self, number: int) -> None:
        """What was profiled up to that step is on disk; nothing happens where nothing was."""
        if self._profiler is None:
            return
        running, self._profiler = self._profiler, None
        running.stop()
        running.export_chrome_trace(str(self._folder / TRACE))
        steps = number - self._first + 1
        self._told({"schema": SCHEMA, "first_step": self._first, "steps": steps, **table(running, self._cuda)})


def profiler(cuda: bool, memory: bool = False) -> Any:
    """torch's, of ops and, where asked, of what is allocated."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # above all its levels: it would write into the display
    from torch.profiler import ProfilerActivity, profile  # 0.2 s that only a profile needs

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    return profile(activities=activities, profile_memory=memory, acc_events=True)  # one cycle; torch 2.11 warns else


def table(profiled: Any, cuda: bool) -> dict[str, Any]:
    """Ops by the time spent in themselves, on the device where there is one. Units: milliseconds."""
    rows = []
    for op in profiled.key_averages():
        spent_us = op.self_device_time_total if cuda else op.self_cpu_time_total
        if spent_us > 0:
            rows.append({"op": op.key, "calls": op.count, "self_ms": spent_us / 1e3})
    rows.sort(key=lambda row: -row["self_ms"])
    total = sum(row["self_ms"] for row in rows)
    return {"by": "device" if cuda else "cpu", "total_ms": total, "ops": rows[:_ROWS]}
