"""Stops a run that has stopped learning: too many skipped steps in a row."""

from __future__ import annotations

from collections.abc import Sequence

from mpt.types import StepRow


def cause(row: StepRow) -> str:
    """Why a step was skipped: its forward was non-finite already, or only its gradients were."""
    return "nonfinite_loss" if row.loss - row.loss != 0 else "gradient_overflow"


class Guard:
    """Watches skips in a row; `limit` None never stops. `scales` tells whether the loss is scaled at all."""

    def __init__(self, limit: int | None, streak: int, *, scales: bool) -> None:
        self._limit, self._streak, self._scales = limit, streak, scales

    def verdict(self, rows: Sequence[StepRow]) -> str | None:
        """The reason to stop after `rows`, or None."""
        for row in rows:
            self._streak = 0 if row.applied else self._streak + 1
            if self._limit is not None and self._streak >= self._limit:
                return self._reason(row)
        return None

    def _reason(self, row: StepRow) -> str:
        head = f"{self._streak} steps in a row were skipped, up to step {row.step}"
        if cause(row) == "nonfinite_loss":
            return (
                f"{head}: the loss itself was non-finite, which no loss scale can cure. "
                "Look at the inputs, lower optimizer.lr, set trainer.clip_norm, or use precision=bf16"
            )
        if not self._scales:
            return (
                f"{head}: gradients are non-finite although the loss is finite. "
                "Lower optimizer.lr, set trainer.clip_norm, or look for an unsafe operation in the model"
            )
        if row.scale <= 1:
            return (
                f"{head}: gradients overflow although the loss scale is down to {row.scale:g}. "
                "Lower optimizer.lr, set trainer.clip_norm, or use precision=bf16"
            )
        return (
            f"{head}: gradients overflow at a loss scale of {row.scale:g}. "
            "Use scaling=dynamic, a smaller scaling.init_scale, or precision=bf16"
        )
