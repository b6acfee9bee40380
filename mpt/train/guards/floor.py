"""Overflows although the scale can go no lower."""

from __future__ import annotations

from typing import Any

from mpt.train.guards._base import Facts, Guard, cause
from mpt.types import StepRow

WINDOW = 100
"""Steps within which guard.floor_skips overflows at the floor are no accident."""


class Floor(Guard):
    """guard.floor_skips skipped steps within WINDOW at a scale that is at its floor, or at 1 or less without one."""

    @classmethod
    def applies(cls, facts: Facts) -> bool:
        return facts.changes

    def fresh(self) -> dict[str, Any]:
        return {"skips": []}

    def see(self, row: StepRow) -> tuple[int, str] | None:
        floor = 1.0 if self.facts.floor is None else self.facts.floor
        if row.applied or row.scale > floor or cause(row) == "nonfinite_loss":  # which no scale has to do with
            return None
        skips = [step for step in self.memory["skips"] if step > row.step - WINDOW] + [row.step]
        self.memory["skips"] = skips
        if len(skips) < self.cfg.floor_skips:
            return None
        self.memory = self.fresh()
        return skips[0], (
            f"{len(skips)} of the last {WINDOW} steps overflowed at a loss scale of {row.scale:g}, which is its floor: "
            "the gradients themselves are too large. Lower optimizer.lr, set trainer.clip_norm, or use precision=bf16"
        )


GUARD = Floor
