"""Order statistics of repeats, and programs that take turns. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MAX_NOISE = 0.10
"""p90 / p10 - 1 above which figures are void."""

MIN_REPEATS = 5


@dataclass(frozen=True)
class Spread:
    """Order statistics of `n` repeats."""

    p10: float
    median: float
    p90: float
    n: int

    @property
    def noise(self) -> float:
        """How far p90 lies above p10, as a share of p10."""
        return self.p90 / self.p10 - 1 if self.p10 else 0.0

    @property
    def void(self) -> bool:
        """Too noisy to say anything."""
        return self.noise > MAX_NOISE


def spread(values: Sequence[float]) -> Spread:
    """The spread of `values`, interpolated between neighbours."""
    ordered = sorted(values)
    return Spread(_at(ordered, 0.1), _at(ordered, 0.5), _at(ordered, 0.9), len(ordered))


def _at(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Effort:
    """How much may be spent: repeats of each program, and seconds after which fewer must do."""

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
        names = list(programs) if done % 2 == 0 else list(programs)[::-1]
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
