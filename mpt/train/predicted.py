"""The peak that could have been told before the run, for its summary."""

from __future__ import annotations

from mpt.train.state import Course
from mpt.types import Unmeasured

AFTER_S = 60.0
"""With trainer.predict=auto, runs that took less make no prediction: it takes 1 to 4 seconds."""


def predicted_peak(course: Course) -> int | Unmeasured:
    """Bytes at the peak of a step of the run's plan, from a trace that knows nothing of what was measured."""
    cfg, plan = course.run.cfg, course.run.plan
    if cfg.trainer.predict == "false":
        return Unmeasured("trainer.predict=false")
    if cfg.trainer.predict == "auto" and course.clock.total_s() < AFTER_S:
        return Unmeasured(f"the run took less than {AFTER_S:.0f} s: `mpt plan` predicts, or trainer.predict=true")
    from mpt.predict.fake import trace  # torch's fake tensors take a second to import
    from mpt.predict.memory import for_device
    from mpt.predict.tracker import Untraceable

    try:
        return for_device(trace(cfg, plan), plan.device).peak_bytes
    except Untraceable as error:
        return Unmeasured("; ".join(f"{p.where}: {p.what}" for p in error.problems))
