"""Stops a run that has stopped learning: too many skipped steps in a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mpt.types import StepRow

ENDING_STREAK = 5
"""Skips in a row, for non-finite losses, with which no run ends well: a single bad batch may be the last."""


def cause(row: StepRow) -> str:
    """Why a step was skipped: its forward was non-finite already, or only its gradients were."""
    return "nonfinite_loss" if row.loss - row.loss != 0 else "gradient_overflow"


class Guard:
    """Watches skips in a row; `limit` None never stops. `strategy` is that of the loss scaling."""

    def __init__(self, limit: int | None, streak: int, strategy: str) -> None:
        self._limit, self._streak, self._strategy = limit, streak, strategy
        self._last: StepRow | None = None

    def verdict(self, rows: Sequence[StepRow]) -> str | None:
        """The reason to stop after `rows`, or None."""
        for row in rows:
            self._last = row
            self._streak = 0 if row.applied else self._streak + 1
            if self._limit is not None and self._streak >= self._limit:
                return self._reason(row)
        return None

    def at_the_end(self, metrics: Mapping[str, float]) -> str | None:
        """Why a run that reached its length learned nothing all the same, or None."""
        row = self._last
        if row is not None and row.update == 0:
            return self._reason(row)
        if row is not None and self._streak >= ENDING_STREAK and cause(row) == "nonfinite_loss":
            return self._reason(row)
        wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
        if wrong:
            return f"the last evaluation's {wrong[0]} is non-finite. Lower optimizer.lr, or look at the evaluation data"
        return None

    def _reason(self, row: StepRow) -> str:
        total = row.step - row.update
        head = f"{self._streak} steps in a row were skipped, up to step {row.step} ({total} of all {row.step})"
        if cause(row) == "nonfinite_loss":
            return (
                f"{head}: the loss itself was non-finite, which no loss scale can cure. "
                "Look at the inputs, lower optimizer.lr, set trainer.clip_norm, or use precision=bf16"
            )
        if self._strategy == "none":
            return (
                f"{head}: gradients are non-finite although the loss is finite. "
                "Lower optimizer.lr, set trainer.clip_norm, or look for an unsafe operation in the model"
            )
        ways = [] if self._strategy == "dynamic" else ["scaling=dynamic"]
        ways += ["a smaller scaling.init_scale"] if row.scale > 1 else ["a lower optimizer.lr"]
        return f"{head}: gradients overflow at a loss scale of {row.scale:g}. Use {', '.join(ways)} or precision=bf16"
