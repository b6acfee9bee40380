"""Attempts with all that watches them: faults on purpose, statistics, lost updates, memory, time, profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mpt.record.writer import RunWriter
from mpt.telemetry.clock import WARMUP_STEPS
from mpt.telemetry.memory import OBSERVED_STEP, MemoryMeter
from mpt.telemetry.profile import Profile
from mpt.train.faults import out_of_memory
from mpt.train.lost import Losses
from mpt.train.numerics import observer
from mpt.train.overflow import look
from mpt.train.parts import Fetched, smaller, undo
from mpt.train.state import Course
from mpt.train.step import Attempt, Window
from mpt.train.tell import Teller
from mpt.types import Batch, StepRow


class Attempts:
    """Makes one attempt after another from the stream of micro-batches; `recent` are those since the last read.

    Micro-batches are taken through `through`.
    """

    def __init__(
        self,
        course: Course,
        batches: Iterator[Batch],
        writer: RunWriter,
        teller: Teller,
        memory: MemoryMeter,
        through: Callable[[Iterator[Batch]], Iterator[Batch]],
    ) -> None:
        self._course, self._run, self._engine = course, course.run, course.engine
        self._batches, self._writer, self._teller, self._memory = through(batches), writer, teller, memory
        self._through = through
        self._clock, self._progress = course.clock, course.progress
        trainer = self._run.cfg.trainer
        self._lost = Losses(self._run, trainer.log_every)
        self._numerics = observer(self._run, self._engine.buffers)
        self._profile = self._profiled(trainer.profile)
        self.recent: list[Attempt] = []
        self.under_way: Fetched | None = None
        """The micro-batches of an attempt that was left where it was."""

    def make(self, step: int, micro: int) -> None:
        """Attempt `step` over `micro` micro-batches; what it left is in `recent` and in the history."""
        self._clock.begin()
        if self._progress.float32_until:
            self._in_float32(step)
        watched = self._lost.watches(step)
        if watched:
            self._lost.before()
        attempt = self._injected(step, micro)
        look(self._run, attempt)
        if watched:
            self._lost.after(attempt.found)
        self._course.history.add(attempt)
        self.recent.append(attempt)
        self._clock.end(attempt.samples, slowed=self._profile is not None and self._profile.slows(step))

    def read(self, rows: Sequence[StepRow]) -> None:
        """The statistics of the attempts whose rows these are go to the record."""
        self._writer.numerics(self._numerics.rows(rows))
        self._lost.read(self._progress)
        self.recent.clear()

    def finish(self, step: int) -> None:
        """No attempt comes after `step`."""
        if self._profile is not None:
            self._profile.finish(step)

    def _in_float32(self, step: int) -> None:
        """This attempt computes in float32, or is the first that does not any more."""
        on = step <= self._progress.float32_until
        self._run.policy.in_float32(on)
        self._progress.float32_until *= on

    def _injected(self, step: int, micro: int) -> Attempt:
        """The attempt with the fault that was put in on purpose, if one was; no evaluation has it."""
        injector = self._engine.injector
        if injector is None:
            return self._stepped(step, micro)
        self._teller.injected(step, injector.arm(step))
        attempt = self._stepped(step, micro)
        injector.arm(0)
        return attempt

    def _stepped(self, step: int, micro: int) -> Attempt:
        """One attempt; where memory runs out before its update, it is made anew with micro-batches in more parts."""
        while True:
            fetched = self.under_way = Fetched(self._batches, micro, self._progress.parts, self._clock)
            try:
                attempt = self._seen(step, self._numerics.watch(step, fetched))
                self.under_way = None
                return attempt
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or fetched.exhausted or not self._smaller(step):
                    raise
            # Not inside the handler: the error holds on to all that the failed pass had in memory.
            undo(self._run, self._engine.buffers)
            self._batches = self._through(self._run.data.train(start=(step - 1) * self._run.plan.length.accumulate))

    def _smaller(self, step: int) -> bool:
        """Whether there is a smaller part to try."""
        samples, progress = self._run.plan.batch_size, self._progress
        parts = smaller(samples, progress.parts)
        if parts is None:
            return False
        progress.parts = parts
        self._teller.out_of_memory(step, samples, parts)
        return True

    def _seen(self, step: int, window: Window) -> Attempt:
        """Memory is looked at in one of the first, time in those to be profiled."""
        stepper = self._engine.stepper
        if self._profile is not None:
            return self._profile.step(step, window, partial(self._memory.step, attempt=stepper))
        return self._memory.step(window, stepper)

    def _profiled(self, steps: int | None) -> Profile | None:
        """The profile of so many steps after the warm-up, else None; of the first where there are too few."""
        if steps is None:
            return None
        done = self._course.history.totals.step
        left = self._run.plan.length.steps - done
        if left <= OBSERVED_STEP:  # no step comes after the one in which memory is looked at
            steps, passed = 1, 0
        else:
            passed = min(WARMUP_STEPS, max(left - steps, OBSERVED_STEP))
        told = partial(self._writer.json, "profile")
        return Profile(self._run.device.type, done + passed + 1, steps, self._writer.dir, told)
