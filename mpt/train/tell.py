"""What is told of steps at a log point: skips and their causes, unreadable samples, where the run stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from typing import Any

from mpt.config.schema import Injection
from mpt.errors import printable
from mpt.record.writer import RunWriter
from mpt.telemetry.console import Console
from mpt.telemetry.memory import MemoryMeter
from mpt.train.guards import Alarm, cause
from mpt.train.locate import locate, locate_backward
from mpt.train.locate_evaluation import locate_evaluation
from mpt.train.overflow import count, overflow
from mpt.train.parts import told as parts_told
from mpt.train.state import Course
from mpt.train.step import Attempt
from mpt.types import Snapshot, StepRow

MOST_SAMPLES = 256
"""Samples that one event lists."""
MOST_SAID = 3
"""Warnings of one guard on the screen; all are in events.jsonl."""


class Teller:
    """Events for the record and lines for the console."""

    def __init__(self, course: Course, writer: RunWriter, console: Console, memory: MemoryMeter) -> None:
        self._course = course
        self._writer, self._console, self._memory = writer, console, memory
        self._told_unreadable = 0
        self._located: dict[int, str] = {}
        self._said: Counter[str] = Counter()
        self._evaluation_told = ""

    def steps(self, rows: Sequence[StepRow], attempts: Sequence[Attempt]) -> None:
        """Tell what is to be told of these steps; the console shows the last."""
        last = attempts[-1]
        if not rows[-1].applied and last.faults is None:  # its gradients are still there
            count(self._course.run, last)
        for row, attempt in zip(rows, attempts, strict=True):
            if not row.applied:
                self._skip(row, attempt)
        self._unreadable(rows[-1].step)
        self._console.update(self._snapshot(rows[-1]))

    def out_of_memory(self, step: int, samples: int, parts: int) -> None:
        """Micro-batches of `samples` did not fit and run in `parts` from here on."""
        self._writer.event("out_of_memory", step=step, micro_batch=samples, parts=parts)
        self._console.say(f"step {step}: {parts_told(samples, parts)}", "warning")

    def injected(self, step: int, faults: Sequence[Injection]) -> None:
        """Faults that were put into attempt `step` on purpose."""
        for fault in faults:
            told = {"module": fault.module, "fault": fault.kind, "where": fault.where}
            self._writer.event("injected", step=step, **told)
            self._console.say(f"step {step}: {fault.kind} put into the {fault.where} pass of {fault.module}")

    def alarm(self, alarm: Alarm) -> None:
        """What a guard found; the console hears the first MOST_SAID of each guard."""
        told = {"guard": alarm.guard, "action": alarm.action, "reason": alarm.reason}
        self._writer.event("guard", step=alarm.step, **told)
        self._said[alarm.guard] += 1
        if alarm.action == "warn" and self._said[alarm.guard] <= MOST_SAID:
            self._console.say(alarm.reason, "warning")

    def rolled_back(self, done: dict[str, Any], reason: str) -> None:
        """A return to a checkpoint, and all that was done in it."""
        self._writer.event("rollback", **done, reason=reason)
        first, last = done["batches_skipped"]
        undone = f"{done['undone']} update{'' if done['undone'] == 1 else 's'} undone"
        passed = f"batch of step {last} is" if first == last else f"batches of steps {first} to {last} are"
        self._console.say(f"{reason}; back to {done['checkpoint']}: {undone}, the {passed} passed over", "warning")

    def _skip(self, row: StepRow, attempt: Attempt) -> None:
        """The step and its cause; for a non-finite forward (the first of a run, or each) also where it began."""
        run, why = self._course.run, cause(row)
        finite = why != "nonfinite_loss"
        what = overflow(run, attempt, self._course.engine.backward_order)
        samples = self._samples(row.step)
        self._writer.event(
            "skip",
            **{"step": row.step, "update": row.update, "cause": why, "scale": row.scale, "forward_finite": finite},
            **what,
            **samples,
        )
        if not finite and (run.cfg.debug.anomaly or not self._located):
            self._console.say(f"step {row.step}: the loss is {row.loss}; {self._locate(row)}", "warning")

    def _samples(self, step: int) -> dict[str, Any]:
        """The training samples of attempt `step`, the first MOST_SAMPLES by index, and by file where they are files."""
        run = self._course.run
        indices = [i for micro in run.plan.length.micros(step - 1) for i in run.data.train_indices(micro)]
        shown = indices[:MOST_SAMPLES]
        return {"samples": shown, "samples_total": len(indices), "files": run.data.sample_names(shown)}

    def origin(self, row: StepRow) -> str:
        """Where the inf or NaN of a skipped step, or of an evaluation after an applied one, come from, in a sentence;
        empty where that is not known.

        Its weights are still those of that step: for a run that is about to end with it.
        """
        if row.applied:
            return self._evaluation_told
        if cause(row) == "nonfinite_loss":
            return self._located.get(row.step) or self._locate(row)
        course = self._course
        with self._faults_of(row.step):
            origin = locate_backward(course.run, course.engine.buffers, row.step)
        if origin is None:
            return ""
        self._writer.event("nonfinite_backward", step=row.step, origin=origin.document())
        return f"without any scaling, {origin.told()}"

    def evaluation(self, step: int, metrics: Mapping[str, float], precision: str) -> None:
        """An evaluation that was made; where its loss is non-finite, the samples at fault, once in a run. Its weights
        are still in place."""
        if isfinite(metrics["loss"]) or self._evaluation_told:
            return
        where = locate_evaluation(self._course.run, precision)
        if not where:
            return
        self._writer.event("nonfinite_evaluation", step=step, **where)
        why = "the batch itself has inf or nan in it" if not where["inputs_finite"] else ""
        why = why or (where["origin"] or {"told": "the model's output has inf or nan in it"})["told"]
        self._evaluation_told = f"evaluation samples {_few(where['samples'])}, counted from 0: {why}"
        self._console.say(
            f"step {step}: the evaluation's loss is {metrics['loss']}; {self._evaluation_told}", "warning"
        )

    def _locate(self, row: StepRow) -> str:
        """Where the forward pass went wrong, by another one over the same batch, told and given."""
        with self._faults_of(row.step):
            where = locate(self._course.run, self._course.engine.buffers, row.step)
        self._writer.event("nonfinite_forward", step=row.step, **where)
        module = where["module"] or "no module any more, with the weights and random draws as they are now"
        told = f"first non-finite in {module}"
        if where.get("inputs_finite") is False:
            told = f"the batch itself has inf or nan in it (training samples {_few(where['samples'])})"
        elif where.get("origin"):
            told = where["origin"]["told"]
        self._located[row.step] = told
        return told

    def _faults_of(self, step: int) -> AbstractContextManager[Any]:
        """Inside, what is put into that attempt on purpose is put in again."""
        injector = self._course.engine.injector
        return injector.again(step) if injector else nullcontext()

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


def _few(samples: Sequence[int]) -> str:
    return ", ".join(map(str, samples[:MOST_SAID])) + (", …" if len(samples) > MOST_SAID else "")
