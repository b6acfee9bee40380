"""Where a step would run compiled: whether a trace follows that, and what it can't tell of it."""

from __future__ import annotations

from mpt.config.schema import RunConfig
from mpt.plan.compiled import is_compiled
from mpt.plan.plan import Plan
from mpt.types import Unmeasured

EAGER_PARTS = (
    "trainer.compile=true with several processes: memory and time are those of the eager step; where a compiler's "
    "kernels meet what is gathered and summed is not predicted"
)
FUSED_FOR_A_CPU = (
    "trainer.compile=true: kernels are fused here as torch fuses them for a CPU; for a GPU it may fuse more of them"
)
NOT_TIMED = Unmeasured(
    "how long a compiler's kernels take on a CPU is not known before they are built: "
    "`mpt bench … trainer.compile=false,true` builds and measures them"
)


def traced_compiled(cfg: RunConfig, plan: Plan) -> bool:
    """Whether its trace is of the compiled step: not where modules are told apart, to share them among processes."""
    return is_compiled(cfg, plan) and cfg.distributed.name == "none"


def not_told(cfg: RunConfig, plan: Plan) -> str:
    """How the predicted step may differ from the compiled one; empty where it is not compiled, or that very one."""
    if not is_compiled(cfg, plan):
        return ""
    if not traced_compiled(cfg, plan):
        return EAGER_PARTS
    return FUSED_FOR_A_CPU if plan.device.type == "cuda" else ""
