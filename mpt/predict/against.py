"""What a prediction is held against: the same step in float32 and in TF32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpt.config.gpus import GPUS, gpu_of
from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan
from mpt.predict.memory import for_device
from mpt.predict.prediction import Prediction
from mpt.predict.roofline import Time, as_tfloat32, gpu_rates, roofline
from mpt.predict.telling import told_trace
from mpt.predict.timing import busy_s, communication_of, sharding_of, time_of
from mpt.predict.tracker import Untraceable
from mpt.types import Unmeasured


@dataclass(frozen=True)
class Against:
    """The same step in float32: seconds of it as `fp32` and as `tf32`, and bytes at its peak."""

    seconds: dict[str, float | Unmeasured]
    peak_bytes: int | Unmeasured


def nothing_against(why: str) -> Against:
    """Where a comparison makes no sense."""
    return Against(dict.fromkeys(("fp32", "tf32"), Unmeasured(why)), Unmeasured(why))


def compared(cfg: RunConfig, plan: Plan, made: Sequence[Prediction] = ()) -> Against:
    """The step in float32 and in TF32; `cfg` and `plan` are those of precision=fp32.

    A plan of `made` that is this very one is not traced and measured again: its speed-up over itself is 1. Where none
    of `made` has a time, only memory is told.
    """
    same = next((p for p in made if p.plan.fingerprint == plan.fingerprint and p.plan.device == plan.device), None)
    try:
        alone = told_trace(cfg, plan) if same is None or same.traced is None else same.traced
    except Untraceable as error:
        return nothing_against("; ".join(p.what for p in error.problems))
    traced = sharding_of(cfg)(alone)
    peak_bytes = for_device(traced, plan.device).peak_bytes
    if made and all(isinstance(p.time, Unmeasured) for p in made):
        return replace(nothing_against("no time is predicted"), peak_bytes=peak_bytes)
    found = time_of(cfg, plan, alone)[0] if same is None else same.time
    tf32: Time | Unmeasured = Unmeasured(f"{plan.device.name} has no TF32, or its rate is not known")
    gpu = gpu_of(plan.device.name) if cfg.device in GPUS else None
    if gpu is not None and gpu.tfloat32 is not None:
        tf32 = roofline(as_tfloat32(traced), gpu_rates(gpu), plan.length.accumulate)
    times = {"fp32": found, "tf32": tf32}
    seconds = {name: busy_s(of, communication_of(cfg, plan, alone, of)) for name, of in times.items()}
    return Against(seconds, peak_bytes)
