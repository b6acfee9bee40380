"""Time of each step and of each phase, without waiting for the device between log points."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mpt.telemetry.history import StepTime
from mpt.types import Unmeasured

WARMUP_STEPS = 5
"""First steps of a process that no statistic counts: allocator, autotuning and lazy set-up run in them."""

PHASES = ("startup", "train", "data", "eval", "checkpoint")


class Event(Protocol):
    """A mark in the device's stream, as torch.cuda.Event and torch.mps.Event have it."""

    def record(self) -> Any: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


@dataclass(frozen=True)
class Speed:
    """Statistics of `n` steps after the warm-up. Units: milliseconds; shares 0 to 1."""

    samples_per_s: float | Unmeasured
    step_p50_ms: float | Unmeasured
    step_p95_ms: float | Unmeasured
    n: int
    data_wait_share: float | Unmeasured


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of sorted values lie, interpolated as numpy does by default."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Clock:
    """Marks begin, waits and end of steps; on CUDA and MPS by events that are read at `drain`.

    A step's time goes from `begin` to `end`; what lies between steps (logging, evaluation, saving) is in none.
    On a device the wait for data is the time that its stream had nothing to do, not the time the host waited.
    """

    def __init__(self, device: str, warmup: int = WARMUP_STEPS) -> None:
        self._marks = _marks(device)
        self._warmup = warmup
        self._steps = 0
        self._times, self._waits, self._samples = array("d"), array("d"), array("q")
        self._early = array("d")
        self._pending: list[tuple[int, bool]] = []
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._born_s = time.perf_counter()
        self.begin, self.fetch, self.fetched = self._marks.begin, self._marks.fetch, self._marks.fetched
        """Call `begin`; then for each micro-batch `fetch` before and `fetched` after it is had; then `end`."""

    def end(self, samples: int, *, slowed: bool = False) -> None:
        """The step's work is issued; it took in `samples` samples. One that is `slowed`, as by a profiler, is in
        the phases and in no statistic.
        """
        self._marks.end()
        self._pending.append((samples, slowed))

    def drain(self) -> list[StepTime]:
        """Times of the steps since the last drain; call it after their values were read, when nothing waits."""
        times = self._marks.drain()
        for (spent, wait), (samples, slowed) in zip(times, self._pending, strict=True):
            self._count(spent, wait, samples, slowed)
        self._pending.clear()
        return times

    def speed(self) -> Speed:
        """Statistics of all drained steps of this process after the warm-up."""
        n = len(self._times)
        if n == 0:
            why = Unmeasured(f"{self._steps} steps, fewer than the {self._warmup} warm-up steps + 1")
            return Speed(why, why, why, 0, why)
        ordered, total = sorted(self._times), math.fsum(self._times)
        share = math.fsum(self._waits) / total if total > 0 else 0.0
        p50, p95 = 1e3 * percentile(ordered, 0.5), 1e3 * percentile(ordered, 0.95)
        rate = sum(self._samples) / total if total > 0 else Unmeasured("steps shorter than the clock's tick")
        return Speed(rate, p50, p95, n, min(1.0, share))

    def recent(self, steps: int = 100) -> tuple[float | None, float | None]:
        """Samples per second and seconds a step over the last steps, for a display; None before the warm-up is over."""
        times = self._times[-steps:]
        total = math.fsum(times)
        if total <= 0:
            return None, None
        return sum(self._samples[-steps:]) / total, total / len(times)

    def warmup_excess_s(self) -> float | Unmeasured:
        """What the warm-up steps took beyond as many median steps: compilation, where compiling is on."""
        if not self._times or not self._early:
            return Unmeasured(f"{self._steps} steps, fewer than the {self._warmup} warm-up steps + 1")
        usual = percentile(sorted(self._times), 0.5)
        return math.fsum(max(0.0, spent - usual) for spent in self._early)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Wall-clock seconds inside go to `name` (`startup`, `eval`, `checkpoint`)."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._phases[name] += time.perf_counter() - start

    def split(self) -> dict[str, float]:
        """Seconds by phase and in total, earlier processes of the run included.

        `train` and `data` are sums over steps; what no phase claims (logging, set-up) is only in `total`.
        """
        return {"total": self.total_s(), **self._phases}

    def total_s(self) -> float:
        """Seconds since this clock was made, plus those of the state that was loaded."""
        return time.perf_counter() - self._born_s

    def state_dict(self) -> dict[str, float]:
        return self.split()

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from the times of an earlier process."""
        self._born_s = time.perf_counter() - state["total"]
        self._phases = {name: state[name] for name in PHASES}

    def _count(self, spent: float, wait: float, samples: int, slowed: bool) -> None:
        self._phases["train"] += spent - wait
        self._phases["data"] += wait
        if slowed:
            return
        self._steps += 1
        if self._steps <= self._warmup:
            self._early.append(spent)
            return
        self._times.append(spent)
        self._waits.append(wait)
        self._samples.append(samples)


class _HostMarks:
    """Marks by the host's clock: right where work is done when the call returns."""

    def __init__(self) -> None:
        self._done: list[StepTime] = []
        self._wait_s = self._begin_s = self._fetch_s = 0.0

    def begin(self) -> None:
        self._wait_s, self._begin_s = 0.0, time.perf_counter()

    def fetch(self) -> None:
        self._fetch_s = time.perf_counter()

    def fetched(self) -> None:
        self._wait_s += time.perf_counter() - self._fetch_s

    def end(self) -> None:
        self._done.append(StepTime(time.perf_counter() - self._begin_s, self._wait_s))

    def drain(self) -> list[StepTime]:
        done, self._done = self._done, []
        return done


class _EventMarks:
    """Marks in the device's stream; events are reused after each drain."""

    def __init__(self, make: type[Event]) -> None:
        self._make = make
        self._free: list[Event] = []
        self._step: list[Event] = []
        self._done: list[list[Event]] = []

    def begin(self) -> None:
        self._step = []
        self._mark()

    def fetch(self) -> None:
        self._mark()

    fetched = fetch

    def end(self) -> None:
        self._mark()
        self._done.append(self._step)

    def drain(self) -> list[StepTime]:
        if not self._done:
            return []
        self._done[-1][-1].synchronize()
        times = [_between(events) for events in self._done]
        self._free.extend(event for events in self._done for event in events)
        self._done = []
        return times

    def _mark(self) -> None:
        event = self._free.pop() if self._free else self._make(enable_timing=True)  # type: ignore[call-arg]
        event.record()
        self._step.append(event)


def _between(events: Sequence[Event]) -> StepTime:
    """Seconds from the first to the last mark, and inside the pairs of marks between them."""
    first, *pairs, last = events
    waits = (a.elapsed_time(b) for a, b in zip(pairs[::2], pairs[1::2], strict=True))
    return StepTime(first.elapsed_time(last) / 1e3, math.fsum(waits) / 1e3)


def _marks(device: str) -> _HostMarks | _EventMarks:
    kind = device.partition(":")[0]
    if kind == "cuda":
        return _EventMarks(torch.cuda.Event)
    if kind == "mps":
        return _EventMarks(torch.mps.event.Event)
    return _HostMarks()
