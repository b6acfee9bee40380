"""What a plan's run would take, all together: memory, the largest batch, time, and what bounds it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from mpt.build import source_of
from mpt.config.gpus import GPUS, gpu_of
from mpt.config.schema import RunConfig
from mpt.data._workers import worker_count
from mpt.plan.plan import Plan
from mpt.precision.switches import flags
from mpt.predict.calibrate import calibrate, calibrated
from mpt.predict.communication import NOTHING, Communication, communication
from mpt.predict.compiled import NOT_TOLD, is_compiled, products
from mpt.predict.fake import MEASURED_WAY, trace
from mpt.predict.memory import Memory, Scaling, cublas_bytes, for_device, scaling
from mpt.predict.roofline import Rates, Time, as_tfloat32, gpu_rates, lowered, roofline
from mpt.predict.sharding import Sharding
from mpt.predict.trace import Trace
from mpt.predict.tracker import Untraceable
from mpt.train.host import on_host
from mpt.train.products import float32_products
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
    """Whether the step would run compiled: figures are the eager one's. `products_s`: what it takes at least."""
    products_s: float | Unmeasured = NOT_TOLD

    @property
    def samples(self) -> int:
        """In one update, of all processes."""
        return self.plan.batch_size * self.plan.length.accumulate * self.plan.processes

    @property
    def busy_s(self) -> float | Unmeasured:
        """Seconds of one step but for waiting for data: computing, and communication that it does not hide."""
        return self.time if isinstance(self.time, Unmeasured) else self.time.total_s + self.communication.known_s

    @property
    def wait_s(self) -> float:
        """What a step waits for data: all of the loading without workers, else what they can't do meanwhile."""
        if isinstance(self.busy_s, Unmeasured):
            return 0.0
        return _wait_s(self.loading_s * self.plan.length.accumulate, self.workers, self.busy_s)

    @property
    def step_s(self) -> float | Unmeasured:
        """Seconds of one step, waiting for data included."""
        return self.busy_s if isinstance(self.busy_s, Unmeasured) else self.busy_s + self.wait_s


def predict(cfg: RunConfig, plan: Plan) -> Prediction:
    """Of a plan of this cfg. What can't be traced or is emulated has a reason instead of figures."""
    limit = _limit(plan)
    nothing = Unmeasured("nothing was traced")
    try:
        alone = trace(*_native(cfg, plan))
        traced = _sharding(cfg)(alone)
        line = _line(cfg, plan, traced)
    except Untraceable as error:
        why = Unmeasured("; ".join(f"{p.where}: {p.what}" for p in error.problems) + f"; {MEASURED_WAY}")
        return Prediction(plan, why, limit, nothing, nothing, why, "", 0.0, worker_count(cfg.data), {})
    found, how = _time(cfg, plan, alone)
    return Prediction(
        plan,
        for_device(traced, plan.device),
        limit,
        line.largest(limit) if isinstance(line, Scaling) and isinstance(limit, int) else _unknown(line, limit),
        line.peak_bytes(1) if isinstance(line, Scaling) else line,
        found,
        how,
        _loading_s(cfg, plan),
        worker_count(cfg.data),
        traced.weights,
        alone,
        _communication(cfg, plan, alone, found),
        is_compiled(cfg, plan),
        _products_s(cfg, plan, alone),
    )


def _products_s(cfg: RunConfig, plan: Plan, alone: Trace) -> float | Unmeasured:
    """Seconds of the products alone, for what is compiled for a GPU of the table; measuring them twice would differ."""
    if not is_compiled(cfg, plan) or cfg.device not in GPUS:
        return NOT_TOLD
    found = _time(cfg, plan, products(alone))[0]
    return found if isinstance(found, Unmeasured) else found.total_s


def _sharding(cfg: RunConfig) -> Sharding:
    return Sharding(cfg.distributed.name, cfg.distributed.nproc or 1)


def _communication(cfg: RunConfig, plan: Plan, alone: Trace, found: Time | Unmeasured) -> Communication:
    phases_s = {} if isinstance(found, Unmeasured) else found.phases
    return communication(alone, _sharding(cfg), phases_s, plan.length.accumulate, cfg.distributed.link_gb_s)


def _wait_s(loading_s: float, workers: int, computing_s: float) -> float:
    return loading_s if not workers else max(0.0, loading_s / workers - computing_s)


def step_s(cfg: RunConfig, plan: Plan, alone: Trace) -> float | Unmeasured:
    """Seconds of one step of that trace, waiting for data included; on a present device after a second of measuring."""
    found, _ = _time(cfg, plan, alone)
    if isinstance(found, Unmeasured):
        return found
    loading_s = _loading_s(cfg, plan) * plan.length.accumulate
    return found.total_s + _wait_s(loading_s, worker_count(cfg.data), found.total_s)


def _unknown(line: Scaling | Unmeasured, limit: int | Unmeasured) -> Unmeasured:
    assert isinstance(line, Unmeasured) or isinstance(limit, Unmeasured), "one of them is not known"
    return line if isinstance(line, Unmeasured) else limit if isinstance(limit, Unmeasured) else Unmeasured("")


def fits(cfg: RunConfig, plan: Plan, batch: int) -> int:
    """Bytes at the peak with micro-batches of `batch`. Raises: Untraceable."""
    return for_device(_sharding(cfg)(trace(*_native(cfg, plan), batch)), plan.device).peak_bytes


def _native(cfg: RunConfig, plan: Plan) -> tuple[RunConfig, Plan]:
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
    other = _sharding(cfg)(trace(*_native(cfg, plan), 2 if traced.batch == 1 else max(1, traced.batch // 2)))
    found = scaling(traced, other)
    if found is None:
        return Unmeasured("steps of different batches differ in their ops")
    lasting = found.lasting
    more = cublas_bytes(plan.device) if plan.device.type == "cuda" else 0
    return replace(found, lasting=lambda batch: lasting(batch) + more)


def _limit(plan: Plan) -> int | Unmeasured:
    memory = plan.device.memory_bytes
    if memory is None:
        return Unmeasured(f"the memory of {plan.device.name} is not known")
    return memory - (CUDA_CONTEXT_BYTES if plan.device.type == "cuda" else 0)


def _time(cfg: RunConfig, plan: Plan, alone: Trace) -> tuple[Time | Unmeasured, str]:
    """Of one process's step, from the trace of a step of one alone; and where the rates come from."""
    m, accumulate = plan.mechanism, plan.length.accumulate
    if m.backend == "emulated":
        return Unmeasured(f"{m.effective} is emulated on {plan.device.name}: no speed is claimed"), ""
    if m.low:
        labels = {row.name: row.compute for row in plan.rows if row.how == "native" and row.kind == "gemm"}
        alone = lowered(alone, {name: label for name, label in labels.items() if label not in (m.compute, "float32")})
    if cfg.device not in GPUS:
        return _measured_time(cfg, plan, alone)
    gpu = gpu_of(plan.device.name)
    assert gpu is not None, "device= names rows of the table"
    shares = f"attainable shares of the dense peaks of {gpu.name}, its bandwidth and launches"
    return _roofline(_sharding(cfg)(alone), gpu_rates(gpu), accumulate, gpu.name), shares


def _roofline(traced: Trace, rates: Rates, accumulate: int, name: str) -> Time | Unmeasured:
    found = roofline(traced, rates, accumulate)
    return Unmeasured(f"{found.reason} on {name}") if isinstance(found, Unmeasured) else found


def _measured_time(cfg: RunConfig, plan: Plan, alone: Trace) -> tuple[Time | Unmeasured, str]:
    """On a device that is here: what its products, copies and this step's ops took in a second of trying."""
    with flags(cfg.precision, plan.device), on_host(cfg, plan), float32_products(cfg, plan):
        found = calibrate(alone, plan.device, plan.length.accumulate)
    how = f"{found.spent_s:.1f} s of measuring on {plan.device.name}; ops of {found.covered:.0%} of it called again"
    return calibrated(_sharding(cfg)(alone), found, plan.length.accumulate), how


def _loading_s(cfg: RunConfig, plan: Plan) -> float:
    if plan.data_bytes:
        return 0.0
    with closing(source_of(cfg)) as data:
        start = time.perf_counter()
        data.batch(0)
        return time.perf_counter() - start


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

    A plan of `made` that is this very one is not traced and measured again: its speed-up over itself is 1.
    """
    same = next((p for p in made if p.plan.fingerprint == plan.fingerprint and p.plan.device == plan.device), None)
    try:
        alone = trace(cfg, plan) if same is None or same.traced is None else same.traced
    except Untraceable as error:
        return nothing_against("; ".join(p.what for p in error.problems))
    traced = _sharding(cfg)(alone)
    found = _time(cfg, plan, alone)[0] if same is None else same.time
    tf32: Time | Unmeasured = Unmeasured(f"{plan.device.name} has no TF32, or its rate is not known")
    gpu = gpu_of(plan.device.name) if cfg.device in GPUS else None
    if gpu is not None and gpu.tfloat32 is not None:
        tf32 = roofline(as_tfloat32(traced), gpu_rates(gpu), plan.length.accumulate)
    seconds = {name: _busy_s(cfg, plan, alone, time) for name, time in (("fp32", found), ("tf32", tf32))}
    return Against(seconds, for_device(traced, plan.device).peak_bytes)


def _busy_s(cfg: RunConfig, plan: Plan, alone: Trace, found: Time | Unmeasured) -> float | Unmeasured:
    """Prediction.busy_s."""
    if isinstance(found, Unmeasured):
        return found
    return found.total_s + _communication(cfg, plan, alone, found).known_s


def keeping(batch: int, accumulate: int, largest: int) -> tuple[int, int]:
    """Micro-batch and accumulation with as many samples an update, the micro-batch no larger than what fits.

    The largest divisor of the whole is taken where one is at least half of what fits, so that all parts are equal.
    """
    whole = batch * accumulate
    even = max((n for n in range(1, min(largest, whole) + 1) if whole % n == 0), default=1)
    size = even if 2 * even >= min(largest, whole) else min(largest, whole)
    return size, math.ceil(whole / size)
