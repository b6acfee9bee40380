"""Whether a step runs compiled."""

from __future__ import annotations

from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan


def is_compiled(cfg: RunConfig, plan: Plan) -> bool:
    """Emulated formats run eagerly, whatever is asked."""
    m = plan.mechanism
    return cfg.trainer.compile and m.how != "emulated" and not (m.low and m.low_how == "emulated")
