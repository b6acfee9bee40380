"""A scale that is held down by its ceiling."""

from __future__ import annotations

from typing import Any

from mpt.train.guards._base import Facts, Guard
from mpt.types import StepRow


class Ceiling(Guard):
    """guard.ceiling_steps steps in a row at the ceiling; told once for each stay there."""

    @classmethod
    def applies(cls, facts: Facts) -> bool:
        return facts.changes and facts.ceiling is not None

    def fresh(self) -> dict[str, Any]:
        return {"steps": 0}

    def see(self, row: StepRow) -> tuple[int, str] | None:
        ceiling = self.facts.ceiling
        self.memory["steps"] = self.memory["steps"] + 1 if ceiling is not None and row.scale >= ceiling else 0
        if self.memory["steps"] != self.cfg.ceiling_steps:
            return None
        return row.step, (
            f"the loss scale has been at its ceiling, {row.scale:g}, for {self.cfg.ceiling_steps} steps without an "
            "overflow: if gradients become zero (zero_grad_share), raise scaling.max_scale"
        )


GUARD = Ceiling
