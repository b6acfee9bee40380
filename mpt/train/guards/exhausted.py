"""A strategy that gives up by its own rule (DeepSpeed's, at its floor)."""

from __future__ import annotations

from mpt.train.guards._base import Facts, Guard
from mpt.types import StepRow


class Exhausted(Guard):
    """Asks the device, but only where a step was skipped at the floor. It always stops the run."""

    @classmethod
    def applies(cls, facts: Facts) -> bool:
        return facts.changes and facts.floor is not None

    def see(self, row: StepRow) -> tuple[int, str] | None:
        floor = self.facts.floor
        if row.applied or floor is None or row.scale > floor or not self.facts.exhausted():
            return None
        return row.step, (
            f"step {row.step} overflowed at the floor of the loss scale, {floor:g}, where "
            f"scaling={self.facts.strategy} ends a run. Lower optimizer.lr, set trainer.clip_norm, use precision=bf16, "
            "or scaling.raise_at_floor=false"
        )


GUARD = Exhausted
