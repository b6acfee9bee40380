"""Rules about what guards may do."""

from __future__ import annotations

from collections.abc import Iterator

from mpt.config.schema import GuardConfig, RunConfig
from mpt.errors import Problem

GUARDS = ("skips", "exhausted", "nonfinite", "spike", "floor", "falling", "sawtooth", "ceiling")
"""In the order in which they are asked about a step."""
_ALWAYS_STOP = ("exhausted",)


def action(guard: GuardConfig, name: str) -> str:
    """What a guard does."""
    return "stop" if name in _ALWAYS_STOP else str(getattr(guard, name))


def returns(name: str, action: str) -> bool:
    """Whether an action takes the run back to a checkpoint: to skip a spike is to undo its update."""
    return action == "rollback" or (name, action) == ("spike", "skip")


def returning(guard: GuardConfig) -> list[str]:
    """The guards that take a run back to a checkpoint."""
    return [name for name in GUARDS if returns(name, action(guard, name))]


def rollback_needs_checkpoints(cfg: RunConfig) -> Iterator[Problem]:
    """There has to be one from before the fault."""
    for name in returning(cfg.guard)[:1]:
        where = f"guard.{name}={getattr(cfg.guard, name)}"
        if cfg.checkpoint.every == 0:
            what = "returns to a checkpoint, and checkpoint.every=0 saves at the end only"
            yield Problem(where, what, "set checkpoint.every to the updates that you can afford to lose")
        if cfg.checkpoint.keep < 2:
            what = "the newest checkpoint may be from after the fault began, and checkpoint.keep=1 keeps no other"
            yield Problem(where, what, "set checkpoint.keep=2")


def rollback_precision(cfg: RunConfig) -> Iterator[Problem]:
    """What is stored in 16 bits does not become float32 for a while."""
    if cfg.guard.rollback_precision == "fp32" and cfg.precision.param != "float32":
        what = f"got `fp32`, but precision={cfg.precision.name} stores its weights in {cfg.precision.param}"
        yield Problem("guard.rollback_precision", what, "use guard.rollback_lr or .rollback_scale")


RULES = (
    rollback_precision,
    rollback_needs_checkpoints,
)
