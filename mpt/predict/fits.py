"""Whether a step fits into a device's memory, and into how many devices' that share its weights."""

from __future__ import annotations

from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan
from mpt.predict.fake import TooLarge
from mpt.predict.memory import for_device
from mpt.predict.prediction import native
from mpt.predict.sharding import Sharding
from mpt.predict.telling import told_trace
from mpt.predict.timing import sharding_of
from mpt.predict.trace import Trace

_LEAST_BYTES = 2
"""Of a weight: those that are trained are stored in 16 bits or more."""
_PROCESSES = tuple(2**power for power in range(1, 11))
"""Tried in turn: from two boards to 1,024, the order of the largest groups that weights are spread over."""


def within(cfg: RunConfig, plan: Plan, batch: int, limit_bytes: int) -> int | None:
    """Bytes at the peak with micro-batches of `batch`; None where that is over the limit. Raises: Untraceable."""
    sharding = sharding_of(cfg)
    alone = _alone(cfg, plan, batch, limit_bytes * (sharding.nproc if sharding.name == "fsdp" else 1))
    return None if alone is None else _peak(alone, sharding, plan, limit_bytes)


def spread(cfg: RunConfig, plan: Plan, batch: int, limit_bytes: int) -> tuple[int, int] | None:
    """The fewest processes of FSDP in each of which a micro-batch of `batch` fits, and the peak of each.

    `cfg` and `plan` are of FSDP, with any number of processes. Raises: Untraceable.
    """
    alone = _alone(cfg, plan, batch, limit_bytes * _PROCESSES[-1])
    if alone is None:
        return None
    peaks = ((n, _peak(alone, Sharding("fsdp", n), plan, limit_bytes)) for n in _PROCESSES)
    return next(((n, peak) for n, peak in peaks if peak is not None), None)


def _alone(cfg: RunConfig, plan: Plan, batch: int, limit_bytes: int) -> Trace | None:
    """The step of one process, not traced to its end where its weights, or what it keeps of them, are too much."""
    if _LEAST_BYTES * plan.params > limit_bytes:
        return None
    try:
        return told_trace(*native(cfg, plan), batch, at_most=limit_bytes)
    except TooLarge:
        return None


def _peak(alone: Trace, sharding: Sharding, plan: Plan, limit_bytes: int) -> int | None:
    peak = for_device(sharding(alone), plan.device).peak_bytes
    return peak if peak <= limit_bytes else None
