"""A trace that says so on stderr where it takes long, so that a plan of many is not silent for minutes."""

from __future__ import annotations

import math
import sys

from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan
from mpt.predict.compiled import traced_compiled
from mpt.predict.fake import trace
from mpt.predict.trace import Trace


def told_trace(cfg: RunConfig, plan: Plan, batch: int | None = None, at_most: float = math.inf) -> Trace:
    """As `trace`; one whose step torch's compiler takes apart, which takes up to 20 seconds, has a line before it."""
    if traced_compiled(cfg, plan):
        told = f"compiling for a trace: {cfg.precision.name}, batch {batch or plan.batch_size}, {plan.device.name}"
        print(told, file=sys.stderr, flush=True)
    return trace(cfg, plan, batch, at_most)
