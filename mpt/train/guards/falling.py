"""A scale that sinks and does not come back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from mpt.train.guards._base import Facts, Guard
from mpt.types import StepRow

WINDOWS = 4
"""Windows that are compared; each has to have a lower peak than the one before."""
FALL = 2.0**3
"""Least factor between the first peak and the last: a scale that hunts around its place moves by 2."""


class Falling(Guard):
    """The largest scale of each guard.falling_window steps is smaller than that of the window before, WINDOWS times.

    The search at the start of a run is no trend: all of it lies in the first window.
    """

    @classmethod
    def applies(cls, facts: Facts) -> bool:
        return facts.changes

    def fresh(self) -> dict[str, Any]:
        return {"count": 0, "peak": 0.0, "peaks": []}

    def see(self, row: StepRow) -> tuple[int, str] | None:
        memory = self.memory
        memory["count"] += 1
        memory["peak"] = max(memory["peak"], row.scale)
        if memory["count"] < self.cfg.falling_window:
            return None
        peaks = [*memory["peaks"], memory["peak"]][-WINDOWS:]
        memory |= {"count": 0, "peak": 0.0, "peaks": peaks}
        falls = all(a > b for a, b in pairwise(peaks))
        if len(peaks) < WINDOWS or not falls or peaks[0] < FALL * peaks[-1]:
            return None
        memory["peaks"] = []
        return row.step, (
            f"the loss scale has fallen from {peaks[0]:g} to {peaks[-1]:g} in {WINDOWS * self.cfg.falling_window} "
            "steps: gradients grow. Lower optimizer.lr, set trainer.clip_norm, or use precision=bf16"
        )


GUARD = Falling
