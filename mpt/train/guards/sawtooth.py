"""A scale that grows only to overflow, again and again."""

from __future__ import annotations

from typing import Any

from mpt.train.guards._base import Facts, Guard
from mpt.types import StepRow

SHARE = 0.01
"""Share of steps lost that way above which it is worth a word; the usual interval of 2000 loses 0.0005."""


class Sawtooth(Guard):
    """guard.sawtooth_teeth teeth, each a growth and then an overflow, cost more than SHARE of their steps."""

    @classmethod
    def applies(cls, facts: Facts) -> bool:
        return facts.changes and facts.grows_by_interval

    def fresh(self) -> dict[str, Any]:
        return {"scale": 0.0, "grown_at": 0, "teeth": []}

    def see(self, row: StepRow) -> tuple[int, str] | None:
        memory, wanted = self.memory, self.cfg.sawtooth_teeth
        if row.scale > memory["scale"] > 0 and not memory["grown_at"]:
            memory["grown_at"] = row.step
        memory["scale"] = row.scale
        if row.applied or not memory["grown_at"]:
            return None
        teeth = [*memory["teeth"], memory["grown_at"]][-wanted:]
        memory |= {"grown_at": 0, "teeth": teeth}
        steps = row.step - teeth[0] + 1
        if len(teeth) < wanted or wanted < SHARE * steps:
            return None
        memory["teeth"] = []
        return teeth[0], (
            f"the loss scale grew and overflowed {wanted} times in {steps} steps, last from {row.scale:.15g}: "
            f"set scaling.max_scale={row.scale / 2:.15g}, or raise scaling.growth_interval"
        )


GUARD = Sawtooth
