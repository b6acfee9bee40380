"""A loss far above those before it."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Any

from mpt.train.guards._base import Guard
from mpt.types import StepRow

LEAST = 20
"""Losses that have to be known first: the error of a median absolute deviation of 20 numbers is about a fifth."""
NORMAL = 1.4826
"""Deviation of a normal distribution over its median absolute deviation, 1 / Φ⁻¹(3/4)."""
LEAST_DEVIATION = 0.05
"""Of the logarithm of a loss: runs with very even losses do not alarm at jumps of a few percent."""


class Spike(Guard):
    """A robust z-score of log(loss) over guard.spike_score, against the last guard.spike_window losses.

    Losses are skewed and fall over orders of magnitude, their logarithms much less. The score is
    (log loss - median) / (1.4826 · median absolute deviation). Spikes and skipped steps join no window; losses that
    are not positive are not judged.
    """

    _peaks: deque[float] | None = None
    """Of the window, those that no later loss is above: the first is the largest of all."""

    def fresh(self) -> dict[str, Any]:
        return {"losses": []}

    def see(self, row: StepRow) -> tuple[int, str] | None:
        if not row.applied or not 0 < row.loss < math.inf:
            return None
        losses: list[float] = self.memory["losses"]
        if self._peaks is None:
            self._peaks = deque()
            for loss in losses:  # of an earlier process
                _join(self._peaks, loss)
        # what is not above all of the window is no spike: the median is looked for only where it is
        if len(losses) >= LEAST and row.loss > self._peaks[0]:
            score, usual = _score(row.loss, losses)
            if score > self.cfg.spike_score:
                return row.step, (
                    f"the loss jumped to {row.loss:.4g} in step {row.step}, from a median of {usual:.4g}: "
                    f"{score:.1f} deviations (guard.spike_score={self.cfg.spike_score:g})"
                )
        losses.append(row.loss)
        _join(self._peaks, row.loss)
        if len(losses) > self.cfg.spike_window and losses.pop(0) == self._peaks[0]:
            self._peaks.popleft()
        return None

    def rolled_back(self) -> None:
        """Losses from before the fault are what comes next is judged by."""


def _join(peaks: deque[float], loss: float) -> None:
    while peaks and peaks[-1] < loss:
        peaks.pop()
    peaks.append(loss)


def _score(loss: float, losses: list[float]) -> tuple[float, float]:
    logs = [math.log(x) for x in losses]
    middle = median(logs)
    deviation = max(NORMAL * median(abs(x - middle) for x in logs), LEAST_DEVIATION)
    return (math.log(loss) - middle) / deviation, math.exp(middle)


GUARD = Spike
