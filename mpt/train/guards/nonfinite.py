"""A loss that is non-finite, or a norm that no strategy of scaling was to keep finite."""

from __future__ import annotations

from typing import Any

from mpt.train.guards._base import Guard, cause
from mpt.types import StepRow


class NonFinite(Guard):
    """guard.nonfinite_steps in a row. The overflow of a scale that adapts is its search, and no fault."""

    def fresh(self) -> dict[str, Any]:
        return {"steps": 0}

    def see(self, row: StepRow) -> tuple[int, str] | None:
        if row.applied or (self.facts.changes and cause(row) != "nonfinite_loss"):
            self.memory["steps"] = 0
            return None
        self.memory["steps"] += 1
        steps = self.memory["steps"]
        if steps < self.cfg.nonfinite_steps:
            return None
        self.memory["steps"] = 0
        what = "loss" if cause(row) == "nonfinite_loss" else "gradient"
        which = f"step {row.step}" if steps == 1 else f"steps {row.step - steps + 1} to {row.step}"
        return row.step - steps + 1, f"the {what} was non-finite in {which}, and the update was skipped"


GUARD = NonFinite
