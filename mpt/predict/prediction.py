"""What a plan's run would take, all together: memory, the largest batch, time, and what bounds it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mpt.config.schema import RunConfig
from mpt.data._workers import worker_count
from mpt.plan.plan import Plan
from mpt.predict.communication import NOTHING, Communication
from mpt.predict.compiled import not_told, traced_compiled
from mpt.predict.fake import MEASURED_WAY
from mpt.predict.memory import Memory, Scaling, cublas_bytes, for_device, scaling
from mpt.predict.roofline import Time
from mpt.predict.telling import told_trace
from mpt.predict.timing import busy_s, communication_of, loading_s, sharding_of, time_of, wait_s
from mpt.predict.trace import Trace
from mpt.predict.tracker import Untraceable
from mpt.types import Unmeasured

CUDA_CONTEXT_BYTES = 600 * 10**6
"""What a CUDA process has before its first tensor: context and code of libraries (A100 and H100, by nvidia-smi)."""


@dataclass(frozen=True)
class Prediction:
    """`limit_bytes` is what the device has for tensors. `how` says where the rates come from. `loading_s` is what one
    micro-batch takes to be read and decoded here, 0 where data lie on the device; `weights` are Trace's."""

    plan: Plan
    memory: Memory | Unmeasured
    limit_bytes: int | Unmeasured
    largest_batch: int | Unmeasured
    smallest_bytes: int | Unmeasured
    time: Time | Unmeasured
    how: str
    loading_s: float
    workers: int
    weights: dict[str, int]
    traced: Trace | None = None
    communication: Communication = NOTHING
    compiled: bool = False
    """Whether the step that is predicted is a compiled one."""
    not_told: str = ""
    """How it may differ from the one that would run compiled."""

    @property
    def samples(self) -> int:
        """In one update, of all processes."""
        return self.plan.batch_size * self.plan.length.accumulate * self.plan.processes

    @property
    def busy_s(self) -> float | Unmeasured:
        """Seconds of one step but for waiting for data."""
        return busy_s(self.time, self.communication)

    @property
    def wait_s(self) -> float:
        """What a step waits for data."""
        if isinstance(self.busy_s, Unmeasured):
            return 0.0
        return wait_s(self.loading_s * self.plan.length.accumulate, self.workers, self.busy_s)

    @property
    def step_s(self) -> float | Unmeasured:
        """Seconds of one step, waiting for data included."""
        return self.busy_s if isinstance(self.busy_s, Unmeasured) else self.busy_s + self.wait_s


def predict(cfg: RunConfig, plan: Plan) -> Prediction:
    """Of a plan of this cfg. What can't be traced or is emulated has a reason instead of figures."""
    limit = _limit(plan)
    nothing = Unmeasured("nothing was traced")
    try:
        alone = told_trace(*native(cfg, plan))
        traced = sharding_of(cfg)(alone)
        line = _line(cfg, plan, traced)
    except Untraceable as error:
        why = Unmeasured("; ".join(f"{p.where}: {p.what}" for p in error.problems) + f"; {MEASURED_WAY}")
        return Prediction(plan, why, limit, nothing, nothing, why, "", 0.0, worker_count(cfg.data), {})
    found, how = time_of(cfg, plan, alone)
    return Prediction(
        plan,
        for_device(traced, plan.device),
        limit,
        _largest(line, limit),
        line.peak_bytes(1) if isinstance(line, Scaling) else line,
        found,
        how,
        loading_s(cfg, plan),
        worker_count(cfg.data),
        traced.weights,
        alone,
        communication_of(cfg, plan, alone, found),
        traced_compiled(cfg, plan),
        not_told(cfg, plan),
    )


def _largest(line: Scaling | Unmeasured, limit: int | Unmeasured) -> int | Unmeasured:
    """Samples in the largest micro-batch that fits."""
    if isinstance(line, Unmeasured):
        return line
    return limit if isinstance(limit, Unmeasured) else line.largest(limit)


def native(cfg: RunConfig, plan: Plan) -> tuple[RunConfig, Plan]:
    """Without low-bit products where some run natively: tensors beside them are as they are without them.

    Native ones can't be traced away from their GPU; what emulated layers beside them keep is then not counted.
    """
    m = plan.mechanism
    if not m.low or not any(row.how == "native" and row.compute not in (m.compute, "float32") for row in plan.rows):
        return cfg, plan
    p = cfg.precision
    options = {key: value for key, value in p.options.items() if key != "gemms"}
    plain = replace(p, options=options, layers=[rule for rule in p.layers if not rule.gemms])
    return replace(cfg, precision=plain), replace(plan, mechanism=replace(plan.mechanism, low=""))


def _line(cfg: RunConfig, plan: Plan, traced: Trace) -> Scaling | Unmeasured:
    found = by_batch(cfg, plan, traced)
    if found is None:
        return Unmeasured("steps of different batches differ in their ops")
    lasting = found.lasting
    more = cublas_bytes(plan.device) if plan.device.type == "cuda" else 0
    return replace(found, lasting=lambda batch: lasting(batch) + more)


def by_batch(cfg: RunConfig, plan: Plan, traced: Trace) -> Scaling | None:
    """The line through two traces of different batches, this one's if it can be. None where no two are alike."""
    seen = [traced]
    for batch in _others(traced.batch, several=traced_compiled(cfg, plan)):
        new = _of_batch(cfg, plan, batch)
        lines = (scaling(one, new) for one in seen)
        found = next((line for line in lines if line is not None), None)
        if found is not None:
            return found
        seen.append(new)
    return None


def _others(batch: int, several: bool) -> tuple[int, ...]:
    """Batches to trace beside it. A compiler lets buffers of one size share their bytes, and the sizes of some batches
    happen to be those of weights: it takes several."""
    half = 2 if batch == 1 else max(1, batch // 2)
    return (half, 2 * batch + 1, 4 * batch + 3) if several else (half,)


def _of_batch(cfg: RunConfig, plan: Plan, batch: int) -> Trace:
    return sharding_of(cfg)(told_trace(*native(cfg, plan), batch))


def _limit(plan: Plan) -> int | Unmeasured:
    memory = plan.device.memory_bytes
    if memory is None:
        return Unmeasured(f"the memory of {plan.device.name} is not known")
    return memory - (CUDA_CONTEXT_BYTES if plan.device.type == "cuda" else 0)


def keeping(batch: int, accumulate: int, largest: int) -> tuple[int, int]:
    """Micro-batch and accumulation with as many samples an update, the micro-batch no larger than what fits.

    The largest divisor of the whole is taken where one is at least half of what fits, so that all parts are equal.
    """
    whole = batch * accumulate
    even = max((n for n in range(1, min(largest, whole) + 1) if whole % n == 0), default=1)
    size = even if 2 * even >= min(largest, whole) else min(largest, whole)
    return size, math.ceil(whole / size)
