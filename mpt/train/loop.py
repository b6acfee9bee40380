"""The loop: attempts, log points, evaluations, checkpoints, and the rules by which it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext

from mpt.checkpoint import Saver
from mpt.errors import ExitCode
from mpt.record.writer import RunWriter
from mpt.telemetry.console import Console
from mpt.telemetry.memory import MemoryMeter
from mpt.train.attempts import Attempts
from mpt.train.due import Every
from mpt.train.evaluate import CutOff, evaluate
from mpt.train.judge import Judge
from mpt.train.progress import Ending
from mpt.train.rules import stop_rule
from mpt.train.signals import NothingComes, StopRequest
from mpt.train.state import Course, capture
from mpt.train.tell import Teller
from mpt.types import Batch
from mpt.units import counted, epochs_text

READ_EVERY_S = 1.0
"""Longest time between reads of the device, for the display; longer steps are read one by one."""


class Loop:
    """Runs one training from where its course stands to its ending."""

    def __init__(
        self,
        course: Course,
        *,
        batches: Iterator[Batch],
        writer: RunWriter,
        saver: Saver,
        console: Console,
        stop: StopRequest,
        memory: MemoryMeter,
    ) -> None:
        self._course = course
        self._run, self._engine = course.run, course.engine
        self._history, self._clock, self._progress = course.history, course.clock, course.progress
        self._writer, self._saver, self._console = writer, saver, console
        self._stop = stop
        cfg, totals = self._run.cfg, self._history.totals
        self._length = self._run.plan.length
        self._step = totals.step
        self._saves = Every(cfg.checkpoint.every, totals.update)
        self._evals = Every(cfg.trainer.eval_every, totals.update)
        self._epoch = self._length.epochs_done(self._step)
        self._teller = Teller(course, writer, console, memory)
        self._attempts = Attempts(course, batches, writer, self._teller, memory, stop.fetched)
        self._judge = Judge(course, saver, self._teller)
        self._forked = False

    def run(self) -> Ending:
        """Attempts until the length is reached, or a rule, a signal or the guard ends it."""
        try:
            if self._judge.may_return and self._progress.saved_step != self._step:
                self._save()  # there is one to return to
            return self._settle() or self._go_on()
        except CutOff:
            return self._interrupted()
        except NothingComes:
            return self._unfed()
        finally:
            self._attempts.finish(self._step)

    def _go_on(self) -> Ending:
        length, stop = self._length, self._stop
        ending: Ending | None = None
        read_at, read_s = self._next_read(), time.perf_counter()
        while ending is None and self._step < length.steps:
            if stop.signal is not None:
                self._read(due=False)
                return self._interrupted()
            micro = length.window(self._step)
            self._step += 1
            self._attempts.make(self._step, micro)
            due = self._step >= read_at
            if due or time.perf_counter() - read_s > READ_EVERY_S:
                ending = self._read(due=due) or self._act()
                read_at, read_s = self._next_read(), time.perf_counter()
        return ending or self._complete(f"{counted(length.steps, 'step')}, {epochs_text(length.epochs)}")

    def _settle(self) -> Ending | None:
        """What the checkpoint left to do: an evaluation that was due when it was saved, and its consequences."""
        if self._progress.best.get("step") == self._step == self._progress.saved_step:
            self._saver.mark_best(self._history.totals.update)
        if not self._progress.owes_evaluation:
            return None
        self._evaluate()
        reason = stop_rule(self._course)
        return self._complete(reason) if reason else None

    def _next_read(self) -> int:
        """The next step at which the host has to know what the device knows."""
        update, trainer = self._history.totals.update, self._run.cfg.trainer
        stops = [self._length.steps, (self._step // trainer.log_every + 1) * trainer.log_every]
        stops += [s for e in (self._saves, self._evals) if (s := e.earliest(self._step, update)) is not None]
        if trainer.eval_every is None:
            stops.append(self._length.first_step_of_epoch(self._epoch + 1))
        return min(stops)

    def _read(self, *, due: bool) -> Ending | None:
        """Bring what happened since the last read to the record; an ending where a guard finds one.

        `due` False: the clock asked, not the step. Nothing that alters the course happens then: it would not again.
        """
        self._saver.poll()
        if not len(self._history):
            return None
        rows = self._history.drain(self._clock.drain())
        self._engine.rates.refill(self._history.totals.update)
        self._writer.steps(rows)
        self._teller.steps(rows, self._attempts.recent)
        self._attempts.read(rows)
        self._course.energy.poll()
        self._progress.train_loss = next((r.loss for r in reversed(rows) if r.applied), self._progress.train_loss)
        ending = self._judge.ending(rows)
        return self._back() if ending is None and self._judge.waits and due else ending

    def _back(self) -> Ending | None:
        """The run goes on from an earlier update, or ends."""
        ending = self._judge.back(self._step)
        cfg, update = self._run.cfg, self._history.totals.update
        self._saves, self._evals = Every(cfg.checkpoint.every, update), Every(cfg.trainer.eval_every, update)
        return ending

    def _act(self) -> Ending | None:
        """Checkpoints and evaluations where they are due, then the stop rules."""
        if self._judge.waits:
            return None
        update, cfg = self._history.totals.update, self._run.cfg
        epoch = self._length.epochs_done(self._step)
        ended, self._epoch = epoch > self._epoch, epoch
        evaluates = self._evals.due(update) or (ended and cfg.trainer.eval_every is None)
        self._progress.owes_evaluation = evaluates
        if self._saves.due(update) or (evaluates and cfg.checkpoint.every is None):
            self._save()
        if evaluates:
            self._evaluate()
        reason = stop_rule(self._course)
        return self._complete(reason) if reason else None

    def _complete(self, reason: str) -> Ending:
        self._progress.owes_evaluation = self._progress.evaluated_step != self._step
        if self._progress.saved_step != self._step:
            self._save(last=True, extra=True)
        if self._progress.owes_evaluation:
            self._evaluate(last=True)
        self._saver.wait()
        wrong = self._judge.at_the_end(self._progress.last_eval)
        return Ending("DIVERGED", ExitCode.DIVERGED, wrong) if wrong else Ending("DONE", ExitCode.FINISHED, reason)

    def _interrupted(self) -> Ending:
        self._console.say(f"{self._stop.name}: saving, then stopping; a second Ctrl-C stops at once")
        if self._progress.saved_step != self._step:
            self._save(last=True, extra=True)
        self._saver.wait()
        told = f"{self._stop.name} after step {self._step}, saved; resume=auto goes on"
        return Ending("INTERRUPTED", self._stop.exit_code, told)

    def _unfed(self) -> Ending:
        """As after a signal between two steps, where the one that waits for data has computed nothing yet."""
        left = self._attempts.under_way
        self._step -= left is not None
        self._read(due=False)
        if left is None or not left.begun:
            return self._interrupted()
        self._saver.wait()  # half a window has drawn random numbers: what is saved now would not go on bit for bit
        saved = max(self._progress.saved_step, 0)
        told = f"{self._stop.name} in step {self._step + 1}, which waits for data"
        return Ending("INTERRUPTED", self._stop.exit_code, f"{told}; resume=auto goes on after step {saved}")

    def _save(self, *, last: bool = False, extra: bool = False) -> None:
        """The course as it is now, written beside the training; `last`, and at the run's length, before anything else
        happens, and without a copy.

        `extra`: only because the run ends here.
        """
        step, update = self._step, self._history.totals.update
        with self._clock.phase("checkpoint"):
            self._progress.saved_step = step
            keeping = self._judge.remember(step, extra=extra)
            state = capture(self._course, self._writer.offset())
            last = last or step >= self._length.steps
            self._saver.save(state, step=step, update=update, last=last, keeping=keeping)

    def _asked(self) -> bool:
        return self._stop.signal is not None

    def _evaluate(self, *, last: bool = False) -> None:
        """Metrics of this moment to the record; the checkpoint of the best ones is kept. Raises: CutOff."""
        run, task, step, update = self._run, self._run.task, self._step, self._history.totals.update
        precision, ema = run.cfg.trainer.eval_precision, self._engine.ema
        if not self._forked and run.cfg.data.workers:
            self._saver.wait()  # the first evaluation forks its workers, which is not safe beside a busy thread
        self._forked = True
        self._console.doing("evaluating")
        with self._clock.phase("eval"), ema.in_place_of_weights() if ema else nullcontext():
            metrics = evaluate(run.model, run.policy, task, run.data, precision, self._asked, self._stop.fetched)
            self._teller.evaluation(step, metrics, precision)
        self._progress.owes_evaluation = False
        best = self._progress.judge(metrics, task.headline, task.mode, step, update)
        weights = "ema" if ema else "current"
        self._writer.evaluation(
            {"step": step, "update": update, **metrics, "best": best, "precision": precision, "weights": weights}
        )
        self._console.evaluated(step, update, metrics)
        if best and self._progress.saved_step != step and run.cfg.checkpoint.every != 0:
            self._save(last=last)
        if best and self._progress.saved_step == step:
            self._saver.mark_best(update)
