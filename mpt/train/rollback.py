"""Back to a checkpoint from before a fault; the batches between it and now are not seen again."""

from __future__ import annotations

from typing import Any

from mpt.checkpoint import load
from mpt.checkpoint.saver import Saver
from mpt.config.schema import GuardConfig
from mpt.scaling._base import limits
from mpt.telemetry.history import read
from mpt.train.guards import Alarm
from mpt.train.state import Course, rewind


def roll_back(course: Course, saver: Saver, alarm: Alarm, step: int) -> dict[str, Any] | str:
    """What was done, or why it could not be. `step` is the last attempt, at a log point.

    Weights, moments, buffers, average, scale and update index are the checkpoint's; steps, the order of the data and
    random draws go on from where they are. Checkpoints of the course that is left are removed.
    """
    cfg, progress, totals = course.run.cfg.guard, course.progress, course.history.totals
    done = len(progress.rollbacks)
    if done >= cfg.rollback_attempts:
        return f"{alarm.reason}. Already rolled back {done} times (guard.rollback_attempts)"
    path = saver.of_steps(_wanted(progress.returns, alarm.step, cfg.rollback_margin))
    if path is None:
        return f"{alarm.reason}. No checkpoint from before step {alarm.step} is there and valid"
    was = totals.update
    to_step = rewind(course, load(path), str(path))
    dropped = saver.forget_after(to_step)
    if progress.best and not saver.keep_best(int(progress.best["update"])):
        progress.best = {}
    changed = _changed(course, cfg, step) if alarm.action == "rollback" else {}
    totals.scale_set(read(course.run.scaler.scale)[0])
    told = {
        **{"step": step, "guard": alarm.guard, "fault_step": alarm.step, "checkpoint": path.name},
        **{"to_step": to_step, "to_update": totals.update, "undone": was - totals.update},
        **{"batches_skipped": [to_step + 1, step], "dropped": dropped, "attempt": done + 1, **changed},
    }
    progress.returns = [s for s in progress.returns if s <= to_step]
    progress.rollbacks.append(told)
    progress.alarm = {}
    return told


def _wanted(returns: list[int], fault: int, margin: int) -> list[int]:
    """Steps to return to, the best first: the newest of those `margin` before the fault, else the oldest before it."""
    early = [s for s in returns if s <= fault - margin]
    late = [s for s in returns if fault - margin < s < fault]
    return [*reversed(early), *late]


def _changed(course: Course, cfg: GuardConfig, step: int) -> dict[str, Any]:
    """Scale, rate and precision that the run goes on with, where they are other than the checkpoint's."""
    run, engine, update = course.run, course.engine, course.history.totals.update
    told: dict[str, Any] = {}
    if cfg.rollback_scale != 1 and run.scaler.changes:
        run.scaler.scale.mul_(cfg.rollback_scale).clamp_(*limits(run.cfg.scaling))
        told["scale"] = read(run.scaler.scale)[0]
    if cfg.rollback_lr != 1:
        course.progress.slow_until = engine.pace.until = update + cfg.rollback_steps
        engine.pace.factor = cfg.rollback_lr
        engine.rates.start_at(update)
        told |= {"lr_factor": cfg.rollback_lr, "lr_until_update": engine.pace.until}
    if cfg.rollback_precision == "fp32":
        told["float32_until_step"] = course.progress.float32_until = step + cfg.rollback_steps
    return told
