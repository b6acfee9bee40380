"""Row 22: what looking at the tensors costs, spread over the steps of the default interval."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from _cells import Cell, ratio
from _measure import Effort, interleaved
from _row import main
from _runner import ONLY_STEPS
from realistic import NETS, SIZES

from mpt.build import build
from mpt.config.compose import compose
from mpt.plan.facts import probe
from mpt.precision.switches import flags
from mpt.record.writer import RunWriter
from mpt.train.engine import make_engine
from mpt.train.numerics import LEAST_EVERY, observer
from mpt.types import StepRow

LIMITS = {"light": 1.02, "full": 1.10}
OURS = {"small_cnn": (), **NETS}
WHAT = {"small_cnn": "small_cnn on digits, batch 64", **SIZES}
PLAIN = 4
"""Steps without a look that one with a look is compared with, in each turn."""


class Watched:
    """Steps of one run, some of them looked at, each look read and written as at a log point."""

    def __init__(self, words: tuple[str, ...], level: str, folder: Path) -> None:
        self._cfg = compose([*words, *ONLY_STEPS, "device=cpu", "trainer.max_steps=10000", f"numerics={level}"])
        self._facts = probe("cpu")
        self._run = build(self._cfg)
        engine = make_engine(self._run)
        self._stepper, self._observer = engine.stepper, observer(self._run, engine.buffers)
        self._batches = self._run.data.train(start=0)
        self._writer = RunWriter(folder)
        self._step = 1

    def ms(self, looked_at: bool, steps: int = 1) -> float:
        """Milliseconds a step, the reading and writing of a look included."""
        with flags(self._cfg.precision, self._facts, deterministic=False):
            start_s = time.perf_counter()
            for _ in range(steps):
                self._once(looked_at)
            return 1e3 * (time.perf_counter() - start_s) / steps

    def _once(self, looked_at: bool) -> None:
        self._step += 1
        step = self._step * LEAST_EVERY * 10_000 + (0 if looked_at else 1)  # due, or one after
        attempt = self._stepper(self._observer.watch(step, [next(self._batches)]))
        if looked_at:
            row = StepRow(step, step, True, 1.0, 1e-3, 1.0, 1.0, attempt.samples, 0.1, 0.0)
            self._writer.numerics(self._observer.rows([row]))


def measure(effort: Effort) -> list[Cell]:
    """One cell for each net and level."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            cell(name, words, level, effort, Path(folder))
            for name, words in OURS.items()
            for level in ("light", "full")
        ]


def cell(name: str, words: tuple[str, ...], level: str, effort: Effort, folder: Path) -> Cell:
    """A step with its part of a look, over a step: (look + (every - 1) steps) / every against a step."""
    run = Watched(words, level, folder / f"{name}-{level}")
    found = interleaved({"look": lambda: run.ms(True), "plain": lambda: run.ms(False, PLAIN)}, effort)
    each = zip(found["look"], found["plain"], strict=True)
    ours = [plain + (look - plain) / LEAST_EVERY for look, plain in each]
    what = f"{WHAT[name]}, float32, numerics={level} at one of {LEAST_EVERY} steps / off, default threads"
    return ratio(22, f"{name} {level}", ours, found["plain"], LIMITS[level], what)


if __name__ == "__main__":
    main(measure, __doc__, repeats=20, budget_s=20)
