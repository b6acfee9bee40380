"""How long a plan's step takes, from the trace of a step of one process alone, on a GPU of the table or as measured."""

from __future__ import annotations

import time
from contextlib import closing

from mpt.build import source_of
from mpt.config.gpus import GPUS, gpu_of
from mpt.config.schema import RunConfig
from mpt.data._workers import worker_count
from mpt.plan.plan import Plan
from mpt.precision.switches import flags
from mpt.predict.calibrate import calibrate, calibrated
from mpt.predict.communication import Communication, communication
from mpt.predict.compiled import NOT_TIMED, traced_compiled
from mpt.predict.roofline import Rates, Time, gpu_rates, lowered, roofline
from mpt.predict.sharding import Sharding
from mpt.predict.trace import Trace
from mpt.train.host import on_host
from mpt.train.products import cpu_products
from mpt.types import Unmeasured

ATTAINABLE = "attainable shares of the dense peaks"
"""How a rate of a device that is not here begins."""


def sharding_of(cfg: RunConfig) -> Sharding:
    """What is asked of several processes."""
    return Sharding(cfg.distributed.name, cfg.distributed.nproc or 1)


def time_of(cfg: RunConfig, plan: Plan, alone: Trace) -> tuple[Time | Unmeasured, str]:
    """Of one process's step, from the trace of a step of one alone; and where the rates come from."""
    m, accumulate = plan.mechanism, plan.length.accumulate
    if m.backend == "emulated":
        return Unmeasured(f"{m.effective} is emulated on {plan.device.name}: no speed is claimed"), ""
    if m.low:
        labels = {row.name: row.compute for row in plan.rows if row.how == "native" and row.kind == "gemm"}
        alone = lowered(alone, {name: label for name, label in labels.items() if label not in (m.compute, "float32")})
    if cfg.device not in GPUS:
        return (NOT_TIMED, "") if _only_built_tells(cfg, plan) else _measured(cfg, plan, alone)
    gpu = gpu_of(plan.device.name)
    assert gpu is not None, "device= names rows of the table"
    shares = f"{ATTAINABLE} of {gpu.name}, its bandwidth and launches; kernels may fall short of them"
    return _roofline(sharding_of(cfg)(alone), gpu_rates(gpu), accumulate, gpu.name), shares


def _roofline(traced: Trace, rates: Rates, accumulate: int, name: str) -> Time | Unmeasured:
    found = roofline(traced, rates, accumulate)
    return Unmeasured(f"{found.reason} on {name}") if isinstance(found, Unmeasured) else found


def _measured(cfg: RunConfig, plan: Plan, alone: Trace) -> tuple[Time | Unmeasured, str]:
    """On a device that is here: what its products, copies and this step's ops took in a second of trying."""
    with flags(cfg.precision, plan.device), on_host(cfg, plan), cpu_products(cfg, plan):
        found = calibrate(alone, plan.device, plan.length.accumulate)
    how = f"{found.spent_s:.1f} s of measuring on {plan.device.name}; ops of {found.covered:.0%} of it called again"
    return calibrated(sharding_of(cfg)(alone), found, plan.length.accumulate), how


def _only_built_tells(cfg: RunConfig, plan: Plan) -> bool:
    """Whether kernels of a compiler's compute more than they move, which no rate tells."""
    return traced_compiled(cfg, plan) and plan.device.type == "cpu"


def communication_of(cfg: RunConfig, plan: Plan, alone: Trace, found: Time | Unmeasured) -> Communication:
    """What goes between the processes in a step that takes that time."""
    phases_s = {} if isinstance(found, Unmeasured) else found.phases
    return communication(alone, sharding_of(cfg), phases_s, plan.length.accumulate, cfg.distributed.link_gb_s)


def busy_s(found: Time | Unmeasured, sent: Communication) -> float | Unmeasured:
    """Seconds of one step but for waiting for data: computing, and communication that it does not hide."""
    return found if isinstance(found, Unmeasured) else found.total_s + sent.known_s


def loading_s(cfg: RunConfig, plan: Plan) -> float:
    """Seconds in which one micro-batch is read and decoded here; 0 where data lie on the device."""
    if plan.data_bytes:
        return 0.0
    with closing(source_of(cfg)) as data:
        start = time.perf_counter()
        data.batch(0)
        return time.perf_counter() - start


def wait_s(loading_s: float, workers: int, computing_s: float) -> float:
    """What a step waits for data: all of the loading without workers, else what they can't do meanwhile."""
    return loading_s if not workers else max(0.0, loading_s / workers - computing_s)


def step_s(cfg: RunConfig, plan: Plan, alone: Trace) -> float | Unmeasured:
    """Seconds of one step of that trace, waiting for data included; on a present device after a second of measuring."""
    found, _ = time_of(cfg, plan, alone)
    if isinstance(found, Unmeasured):
        return found
    loading = loading_s(cfg, plan) * plan.length.accumulate
    return found.total_s + wait_s(loading, worker_count(cfg.data), found.total_s)
