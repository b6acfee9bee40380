"""Which gradients overflowed in a skipped step."""

from __future__ import annotations

import math
from typing import Any

from mpt.build import Run
from mpt.telemetry.history import read
from mpt.train.step import Attempt


def overflow(run: Run, attempt: Attempt) -> dict[str, Any]:
    """How many gradients were non-finite, the first of them in backward order, and the largest norm that was finite.

    Norms are as the backward pass left them, scaled. Reads the device: only skipped steps are asked.
    """
    names = [n for n, m in zip(run.policy.names, run.policy.masters, strict=True) if m.grad is not None]
    parts = read(attempt.parts)
    bad = [i for i, norm in enumerate(parts) if not math.isfinite(norm)]
    finite = [norm for norm in parts if math.isfinite(norm)]
    return {
        "nonfinite_tensors": len(bad),
        "tensors": len(parts),
        "first_in_backward": names[bad[-1]] if bad and len(names) == len(parts) else None,
        "largest_finite_norm": max(finite, default=None),
    }
