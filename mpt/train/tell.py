"""What is told of steps at a log point: skips and their causes, unreadable samples, where the run stands."""

from __future__ import annotations

from collections.abc import Sequence

from mpt.errors import printable
from mpt.record.writer import RunWriter
from mpt.telemetry.console import Console
from mpt.telemetry.memory import MemoryMeter
from mpt.train.guard import cause
from mpt.train.locate import locate
from mpt.train.overflow import overflow
from mpt.train.state import Course
from mpt.train.step import Attempt
from mpt.types import Snapshot, StepRow


class Teller:
    """Events for the record and lines for the console."""

    def __init__(self, course: Course, writer: RunWriter, console: Console, memory: MemoryMeter) -> None:
        self._course = course
        self._writer, self._console, self._memory = writer, console, memory
        self._told_unreadable = 0
        self._located = False

    def steps(self, rows: Sequence[StepRow], attempts: Sequence[Attempt]) -> None:
        """Tell what is to be told of these steps; the console shows the last."""
        for row, attempt in zip(rows, attempts, strict=True):
            if not row.applied:
                self._skip(row, attempt)
        self._unreadable(rows[-1].step)
        self._console.update(self._snapshot(rows[-1]))

    def _skip(self, row: StepRow, attempt: Attempt) -> None:
        """The step and its cause; for a non-finite forward (the first of a run, or each) also where it began."""
        run, why = self._course.run, cause(row)
        what = overflow(run, attempt)
        self._writer.event("skip", step=row.step, update=row.update, cause=why, scale=row.scale, **what)
        if why == "nonfinite_loss" and (run.cfg.debug.anomaly or not self._located):
            self._located = True
            where = locate(run, self._course.engine.buffers, row.step)
            self._writer.event("nonfinite_forward", step=row.step, **where)
            module = where["module"] or "no module any more, with the weights as they are now"
            self._console.say(f"step {row.step}: the loss is {row.loss}; first non-finite in {module}", "warning")

    def _unreadable(self, step: int) -> None:
        """Samples that were replaced since the last log point, by name."""
        new = self._course.run.data.skipped[self._told_unreadable :]
        if new:
            self._told_unreadable += len(new)
            self._course.progress.skipped_samples += len(new)
            self._writer.event("unreadable_samples", step=step, names=new)
            more = f" and {len(new) - 3} more" if len(new) > 3 else ""
            names = printable(", ".join(new[:3]))
            self._console.say(f"unreadable samples were replaced: {names}{more}", "warning")

    def _snapshot(self, row: StepRow) -> Snapshot:
        totals, length = self._course.history.totals, self._course.run.plan.length
        rate, step_s = self._course.clock.recent()
        return Snapshot(
            step=row.step,
            total_steps=length.steps,
            update=totals.update,
            epoch=length.epochs_at(row.step),
            loss=row.loss,
            lr=row.lr,
            scale=row.scale,
            skipped=totals.skipped,
            samples_per_s=rate,
            memory_bytes=self._memory.now_bytes(),
            eta_s=None if step_s is None else (length.steps - row.step) * step_s,
        )
