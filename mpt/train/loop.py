"""The loop: attempts, log points, evaluations, checkpoints, and the rules by which it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from mpt.build import Run
from mpt.checkpoint import CheckpointStore
from mpt.errors import ExitCode
from mpt.record.writer import RunWriter
from mpt.telemetry.clock import Clock
from mpt.telemetry.console import Console
from mpt.telemetry.history import History
from mpt.telemetry.memory import MemoryMeter
from mpt.train.due import Every
from mpt.train.engine import Engine
from mpt.train.evaluate import evaluate
from mpt.train.guard import Guard, cause
from mpt.train.losses import LossMeters
from mpt.train.progress import Ending, Progress
from mpt.train.signals import StopRequest
from mpt.train.state import capture
from mpt.types import Batch, Snapshot, StepRow

READ_EVERY_S = 1.0
"""Longest time between reads of the device, for the display; steps longer than that are read one by one."""


class Loop:
    """Runs one training from where `progress` stands to its ending."""

    def __init__(
        self,
        run: Run,
        engine: Engine,
        *,
        writer: RunWriter,
        store: CheckpointStore,
        console: Console,
        stop: StopRequest,
        clock: Clock,
        history: History,
        memory: MemoryMeter,
        progress: Progress,
    ) -> None:
        self.run_, self.engine, self.progress = run, engine, progress
        self.writer, self.store, self.console, self.stop = writer, store, console, stop
        self.clock, self.history, self.memory = clock, history, memory
        totals, trainer = history.totals, run.cfg.trainer
        self.step = totals.step
        self.losses = LossMeters(run)
        self._guard = Guard(run.cfg.scaling.max_consecutive_skips, totals.streak)
        self._saves = Every(run.cfg.checkpoint.every, totals.update)
        self._evals = Every(trainer.eval_every, totals.update)
        self._epoch = run.plan.length.epochs_done(self.step)
        self._stopped: Ending | None = None

    def run(self) -> Ending:
        """Attempts until the length is reached, or a rule, a signal or the guard ends it."""
        length = self.run_.plan.length
        batches = self.run_.data.train(start=self.step * length.accumulate)
        read_at = self._next_read()
        last_read_s = time.perf_counter()
        while self.step < length.steps and self._stopped is None:
            if self.stop.signal is not None:
                self._read()
                return self._interrupted()
            self._attempt(batches, length.window(self.step))
            if self.step >= read_at or time.perf_counter() - last_read_s > READ_EVERY_S:
                self._read()
                self._at_read()
                read_at = self._next_read()
                last_read_s = time.perf_counter()
        return self._stopped or self._finished()

    def _attempt(self, batches: Iterator[Batch], micro: int) -> None:
        clock = self.clock
        clock.begin()
        window = []
        for _ in range(micro):
            clock.fetch()
            window.append(next(batches))
            clock.fetched()
        self.step += 1
        with self.losses.around(self.step) if self.losses.watch(self.step) else nullcontext():
            outcome = self.engine.stepper(window)
        self.history.add(outcome)
        clock.end(outcome.samples)

    def _next_read(self) -> int:
        """The next step at which the host has to know what the device knows."""
        update, length, trainer = self.history.totals.update, self.run_.plan.length, self.run_.cfg.trainer
        stops = [length.steps, (self.step // trainer.log_every + 1) * trainer.log_every]
        stops += [s for e in (self._saves, self._evals) if (s := e.earliest(self.step, update)) is not None]
        if trainer.eval_every is None:
            micro = (self._epoch + 1) * length.batches_per_epoch
            stops.append(-(-micro // length.accumulate))
        return min(stops)

    def _read(self) -> None:
        """Bring all that happened since the last read to the record."""
        if not len(self.history):
            return
        rows = self.history.drain(self.clock.drain()) if self._synced() else []
        self.writer.steps(rows)
        self.losses.read(self.progress)
        for row in rows:
            if not row.applied:
                self._tell_skip(row)
        self.progress.train_loss = rows[-1].loss
        reason = self._guard.verdict(rows)
        if reason is not None:
            self._stopped = Ending("DIVERGED", ExitCode.DIVERGED, reason)
        self.console.update(self._snapshot(rows[-1]))

    def _tell_skip(self, row: StepRow) -> None:
        self.writer.event("skip", step=row.step, update=row.update, cause=cause(row), scale=row.scale, loss=row.loss)

    def _at_read(self) -> None:
        """Evaluations, checkpoints and stop rules, where they are due."""
        if self._stopped is not None:
            return
        update = self.history.totals.update
        epoch, trainer = self.run_.plan.length.epochs_done(self.step), self.run_.cfg.trainer
        ended, self._epoch = epoch > self._epoch, epoch
        evaluates = self._evals.due(update) or (ended and trainer.eval_every is None)
        if self._saves.due(update) or (evaluates and self.run_.cfg.checkpoint.every is None):
            self.save()
        if evaluates:
            self.evaluate()
        self._stopped = self._rule()

    def _rule(self) -> Ending | None:
        """A stop rule of the configuration that holds now."""
        trainer, task = self.run_.cfg.trainer, self.run_.task
        value = self.progress.last_eval.get(task.headline)
        if trainer.max_time_s is not None and self.clock.total_s() >= trainer.max_time_s:
            return self._done(f"trainer.max_time_s={trainer.max_time_s:g} is over")
        if trainer.patience is not None and self.progress.stale >= trainer.patience:
            return self._done(f"{self.progress.stale} evaluations without improvement (trainer.patience)")
        if trainer.target is not None and value is not None:
            reached = value >= trainer.target if task.mode == "max" else value <= trainer.target
            if reached:
                return self._done(f"{task.headline} {value:.4g} reached trainer.target={trainer.target:g}")
        return None

    def _done(self, reason: str) -> Ending:
        if self.progress.saved_step != self.step:
            self.save()
        if self.progress.evaluated_step != self.step:
            self.evaluate()
        return Ending("DONE", ExitCode.FINISHED, reason)

    def _finished(self) -> Ending:
        length = self.run_.plan.length
        return self._done(f"{length.steps} steps, {length.epochs:.4g} epochs")

    def _interrupted(self) -> Ending:
        if self.progress.saved_step != self.step:
            self.save()
        code = ExitCode.SIGINT if self.stop.name == "SIGINT" else ExitCode.SIGTERM
        return Ending("INTERRUPTED", code, f"{self.stop.name} after step {self.step}; the same command goes on with resume=auto")

    def save(self) -> None:
        """A checkpoint of this moment."""
        with self.clock.phase("checkpoint"):
            self.progress.saved_step = self.step
            state = capture(self.run_, self.engine, self.progress, self.history, self.clock, self.writer.offset())
            path = self.store.save(state, step=self.step, update=self.history.totals.update, best=False)
            self.writer.event("checkpoint", step=self.step, update=self.history.totals.update, path=path.name)

    def evaluate(self) -> None:
        """Metrics of this moment to the record; the checkpoint of the best one is kept."""
        run, task, update = self.run_, self.run_.task, self.history.totals.update
        with self.clock.phase("eval"):
            average = self.engine.ema.in_place_of_weights() if self.engine.ema else nullcontext()
            with average:
                metrics = evaluate(run.model, run.policy, task, run.data, run.cfg.trainer.eval_precision)
        best = self.progress.judge(metrics, task.headline, task.mode, self.step, update)
        if best and self.progress.saved_step == self.step:
            self.store.mark_best(update)
        self.writer.evaluation(
            {
                "step": self.step,
                "update": update,
                **metrics,
                "best": best,
                "precision": run.cfg.trainer.eval_precision,
                "weights": "ema" if self.engine.ema else "current",
                "n": run.plan.data.n_eval,
            }
        )
        self.console.evaluated(self.step, update, metrics)

    def _synced(self) -> bool:
        return True

    def _snapshot(self, row: StepRow) -> Snapshot:
        length, totals = self.run_.plan.length, self.history.totals
        speed = self.clock.speed()
        rate = speed.samples_per_s if isinstance(speed.samples_per_s, float) else None
        left = (length.steps - self.step) * speed.step_p50_ms / 1e3 if isinstance(speed.step_p50_ms, float) else None
        return Snapshot(
            step=self.step,
            total_steps=length.steps,
            update=totals.update,
            epoch=min(self.step * length.accumulate, length.micro) / length.batches_per_epoch,
            loss=row.loss,
            lr=row.lr,
            scale=row.scale,
            skipped=totals.skipped,
            samples_per_s=rate,
            memory_bytes=self.memory.current(),
            eta_s=left,
        )

    def state(self) -> dict[str, Any]:
        """Where the run stands, for summary.json."""
        return {"epochs": min(self.step * self.run_.plan.length.accumulate, self.run_.plan.length.micro)}
