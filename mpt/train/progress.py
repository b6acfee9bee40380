"""Counters of a run that is under way, beyond what History and Clock count; all in every checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

TIME_RULE = "trainer.max_time_s"
"""How the reason of a run begins that ran out of time."""


@dataclass
class Progress:
    """`best` holds metrics, step and update of the best evaluation; `stale` counts evaluations since it."""

    best: dict[str, float] = field(default_factory=dict)
    last_eval: dict[str, float] = field(default_factory=dict)
    evaluated_step: int = -1
    saved_step: int = -1
    owes_evaluation: bool = False
    """Saved where an evaluation was due, before it was made: whoever resumes makes it."""
    parts: int = 1
    """In how many parts a micro-batch is computed, since one was too large for the memory."""
    skipped_samples: int = 0
    stale: int = 0
    train_loss: float | None = None
    zero_grad_share: list[float] = field(default_factory=list)
    lost_update_share: list[float] = field(default_factory=list)
    resumed_at: list[int] = field(default_factory=list)
    guards: dict[str, Any] = field(default_factory=dict)
    """What each guard remembers."""
    alarm: dict[str, Any] = field(default_factory=dict)
    """One that takes the run back at the next log point."""
    returns: list[int] = field(default_factory=list)
    """Steps of the last checkpoint.keep checkpoints that were due: those that a rollback may choose from. One that was
    saved because the run was interrupted is not: a rollback would depend on when that was."""
    rollbacks: list[dict[str, Any]] = field(default_factory=list)
    float32_until: int = 0
    """The attempt up to which everything is computed in float32 (guard.rollback_precision)."""
    slow_until: int = 0
    """The update up to which the rate is that of guard.rollback_lr."""

    def judge(self, metrics: dict[str, float], headline: str, mode: str, step: int, update: int) -> bool:
        """Take an evaluation into account; whether it is the best so far. One with a non-finite metric never is."""
        self.last_eval, self.evaluated_step = metrics, step
        value, known = metrics[headline], self.best.get(headline)
        sound = all(math.isfinite(v) for v in metrics.values())
        better = sound and (known is None or (value > known if mode == "max" else value < known))
        if better:
            self.best = {**metrics, "step": step, "update": update}
        self.stale = 0 if better else self.stale + 1
        return better


@dataclass(frozen=True)
class Ending:
    """How a run ended: a marker's name, the exit code, and the reason in a sentence."""

    marker: str
    exit_code: int
    reason: str

    @property
    def status(self) -> str:
        return self.marker.lower()
