"""A scale that overflows each time it grows, and often."""

from __future__ import annotations

from typing import Any

from mpt.train.guards._base import Facts, Guard
from mpt.types import StepRow

SOON = 2
"""Steps after a growth within which an overflow answers it."""
SHARE = 0.01
"""Share of steps lost that way above which it is worth a word; the usual interval of 2000 loses 0.0005."""


class Sawtooth(Guard):
    """Of guard.sawtooth_growths growths in a row each was answered by an overflow, at more than SHARE of the steps."""

    @classmethod
    def applies(cls, facts: Facts) -> bool:
        return facts.changes and facts.grows_by_interval

    def fresh(self) -> dict[str, Any]:
        return {"scale": 0.0, "grown_at": 0, "since": 0, "answered": 0}

    def see(self, row: StepRow) -> tuple[int, str] | None:
        memory = self.memory
        if row.scale > memory["scale"] > 0:
            self._grown(row.step)
        memory["scale"] = row.scale
        if row.applied or not 0 < memory["grown_at"] > row.step - SOON:
            return None
        memory["answered"] += 1
        memory["grown_at"] = -memory["grown_at"]  # answered
        steps = row.step - memory["since"] + 1
        if memory["answered"] < self.cfg.sawtooth_growths or memory["answered"] < SHARE * steps:
            return None
        reason = (
            f"the loss scale overflowed after each of its last {memory['answered']} growths, once in "
            f"{steps / memory['answered']:.0f} steps: set scaling.max_scale={row.scale / 2:g}, or raise "
            "scaling.growth_interval"
        )
        since = memory["since"]
        memory |= {"answered": 0, "since": row.step}
        return since, reason

    def _grown(self, step: int) -> None:
        memory = self.memory
        if memory["grown_at"] > 0:  # the last growth held
            memory |= {"answered": 0, "since": step}
        memory["since"] = memory["since"] or step
        memory["grown_at"] = step


GUARD = Sawtooth
