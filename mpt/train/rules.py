"""The rules of the configuration by which a run ends before its length: time, patience, target."""

from __future__ import annotations

from mpt.train.progress import TIME_RULE
from mpt.train.state import Course


def stop_rule(course: Course) -> str | None:
    """The rule that holds now, in words; None where the run goes on."""
    trainer, task, progress = course.run.cfg.trainer, course.run.task, course.progress
    value = progress.last_eval.get(task.headline)
    if trainer.max_time_s is not None and course.clock.total_s() >= trainer.max_time_s:
        return f"{TIME_RULE}={trainer.max_time_s:g} is over"
    if trainer.patience is not None and progress.stale >= trainer.patience:
        return f"{progress.stale} evaluations without improvement (trainer.patience)"
    if trainer.target is not None and value is not None:
        reached = value >= trainer.target if task.mode == "max" else value <= trainer.target
        return f"{task.headline} {value:.4g} reached trainer.target={trainer.target:g}" if reached else None
    return None
