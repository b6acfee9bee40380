"""Too many skipped steps in a row."""

from __future__ import annotations

from typing import Any

from mpt.train.guards._base import Guard, cause
from mpt.types import StepRow
from mpt.units import counted


class Skips(Guard):
    """scaling.max_consecutive_skips in a row: the run has stopped learning."""

    def fresh(self) -> dict[str, Any]:
        return {"streak": 0}

    def see(self, row: StepRow) -> tuple[int, str] | None:
        if row.applied:
            self.memory["streak"] = 0
            return None
        self.memory["streak"] += 1
        if self.facts.limit is None or self.memory["streak"] < self.facts.limit:
            return None
        reason = self.reason(row)
        began = row.step - self.memory["streak"] + 1
        self.memory["streak"] = 0
        return began, reason

    def reason(self, row: StepRow) -> str:
        """Why the steps up to `row` were skipped, and what would help."""
        streak, strategy = self.memory["streak"], self.facts.strategy
        total = row.step - row.update - self.facts.undone()
        in_a_row = f"{counted(streak, 'step')} in a row {'was' if streak == 1 else 'were'} skipped"
        head = f"{in_a_row}, up to step {row.step} ({total} of all {row.step})"
        if cause(row) == "nonfinite_loss":
            last = "use precision=bf16" if self.facts.float16 else "look for an unsafe operation in the model"
            return (
                f"{head}: the loss itself was non-finite, which no loss scale can cure. "
                f"Look at the inputs, lower optimizer.lr, set trainer.clip_norm, or {last}"
            )
        if strategy == "none":
            return (
                f"{head}: gradients are non-finite although the loss is finite. "
                "Lower optimizer.lr, set trainer.clip_norm, or look for an unsafe operation in the model"
            )
        ways = [] if self.facts.changes else ["scaling=dynamic"]
        ways += ["a smaller scaling.init_scale"] if row.scale > 1 else ["a lower optimizer.lr"]
        return f"{head}: gradients overflow at a loss scale of {row.scale:g}. Use {', '.join(ways)} or precision=bf16"


GUARD = Skips
