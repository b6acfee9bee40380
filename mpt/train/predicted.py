"""The peak and the step's time that could have been told before the run, for its summary."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mpt.train.state import Course
from mpt.types import Unmeasured

AFTER_S = 60.0
"""With trainer.predict=auto, runs that took less make no prediction: it takes 2 to 8 seconds."""


class Predicted(NamedTuple):
    """What a trace of the plan tells, which knows nothing of what was measured."""

    peak_bytes: int | Unmeasured
    step_ms: float | Unmeasured


def predicted(course: Course) -> Predicted:
    """Bytes at the peak of a step of the run's plan, and what the step takes."""
    cfg, plan = course.run.cfg, course.run.plan
    if cfg.trainer.predict == "false":
        return _none("trainer.predict=false")
    if cfg.trainer.predict == "auto" and course.clock.total_s() < AFTER_S:
        return _none(f"the run took less than {AFTER_S:.0f} s: `mpt plan` predicts, or trainer.predict=true")
    from mpt.predict.fake import trace  # torch's fake tensors take a second to import
    from mpt.predict.memory import for_device
    from mpt.predict.tracker import Untraceable

    try:
        traced = trace(cfg, plan)
    except Untraceable as error:
        return _none("; ".join(f"{p.where}: {p.what}" for p in error.problems))
    from mpt.predict.timing import step_s

    try:
        seconds = step_s(cfg, plan, traced)
    except torch.OutOfMemoryError:
        seconds = Unmeasured("the run left the device no memory to measure its rates with")
    step_ms = seconds if isinstance(seconds, Unmeasured) else 1e3 * seconds
    return Predicted(for_device(traced, plan.device).peak_bytes, step_ms)


def _none(why: str) -> Predicted:
    return Predicted(Unmeasured(why), Unmeasured(why))
