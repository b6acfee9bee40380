"""How long a step takes: each op as long as its arithmetic or its bytes, the longer, and its start. No torch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mpt.config.gpus import Gpu
from mpt.predict.trace import Op, Trace
from mpt.types import Unmeasured

BOUNDS = ("arithmetic", "bandwidth", "launch")

_GEMM_SHARE = {8: 0.87, 9: 0.80, 10: 0.78}
"""What large products reach of the dense peak, by compute capability: measured on A100, H100/H200 and B200; older ones
are taken like A100, newer ones like B200."""
_BANDWIDTH_SHARE = 0.92
_LAUNCH_S = 2e-6
"""From the end of one kernel to the start of the next on a GPU whose queue is never empty."""
_TENSORS_A_LAUNCH = 30
"""Tensors that one launch of a fused optimizer takes. Source: torch, MultiTensorApply.cuh."""


@dataclass(frozen=True)
class Rates:
    """What a device attains. Units: FLOP/s by format, bytes/s, seconds."""

    flops: Mapping[str, float]
    bandwidth: float
    launch_s: float
    of_format: Callable[[str], float | None] | None = None

    def rate(self, form: str) -> float | None:
        """FLOP/s of products in that format; None where it is not known."""
        return self.flops.get(form) or (self.of_format(form) if self.of_format else None)


def gpu_rates(gpu: Gpu) -> Rates:
    """What the table's peaks come to."""
    share = _GEMM_SHARE[min(max(gpu.capability[0], 8), 10)]

    def rate(form: str) -> float | None:
        peak = gpu.peak_tflops(form)
        return None if peak is None else peak * share * 1e12

    return Rates({}, gpu.bandwidth_tb_s * 1e12 * _BANDWIDTH_SHARE, _LAUNCH_S, rate)


@dataclass
class Spent:
    """Seconds of some ops, by what bounds each of them."""

    by_bound: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BOUNDS, 0.0))

    @property
    def total_s(self) -> float:
        return sum(self.by_bound.values())

    @property
    def bound(self) -> str:
        """What most of the time is bound by."""
        return max(self.by_bound, key=lambda name: self.by_bound[name])


@dataclass(frozen=True)
class Time:
    """A step's seconds, and by module and phase."""

    total_s: float
    modules: dict[str, Spent]
    phases: dict[str, float]
    bounds: dict[str, float]
    launches: int
    moved_bytes: int
    flops: dict[str, int]


def times_of(op: Op, accumulate: int) -> int:
    """How often it runs in a step: the second micro-batch of a trace stands for all that follow."""
    return accumulate - 1 if op.micro and op.phase != "update" else 1


def roofline(
    trace: Trace, rates: Rates, accumulate: int, measured: Mapping[int, float] | None = None, overhead_s: float = 0.0
) -> Time | Unmeasured:
    """The step's time. `measured` has seconds of ops by signature, which stand for what is reckoned;
    `overhead_s` is what the host spends around each op of the model where it can't run ahead."""
    modules: defaultdict[str, Spent] = defaultdict(Spent)
    phases: defaultdict[str, float] = defaultdict(float)
    bounds = dict.fromkeys(BOUNDS, 0.0)
    flops: defaultdict[str, int] = defaultdict(int)
    launches = moved = 0
    for op in trace.ops:
        if op.executed and rates.rate(op.form) is None:
            return Unmeasured(f"no rate of products in {op.form} is known")
        runs = times_of(op, accumulate)
        seconds, bound = _op(op, rates, measured or {}, overhead_s)
        modules[op.module].by_bound[bound] += seconds * runs
        phases[op.phase] += seconds * runs
        bounds[bound] += seconds * runs
        launches += runs * op.kernel
        moved += runs * op.moved
        if op.flops:
            flops[op.form] += op.flops * runs
    return Time(sum(bounds.values()), dict(modules), dict(phases), bounds, launches, moved, dict(flops))


def reckon(op: Op, rates: Rates) -> float:
    """Seconds of an op by the roofline."""
    return max(_arithmetic_s(op, rates), op.moved / rates.bandwidth) + _launch_s(op, rates)


def _op(op: Op, rates: Rates, measured: Mapping[int, float], overhead_s: float) -> tuple[float, str]:
    """Seconds, and what they are bound by."""
    spent = _spent(op, rates, measured) if op.kernel else 0.0
    arithmetic, bandwidth = _arithmetic_s(op, rates), op.moved / rates.bandwidth
    around = overhead_s if op.kernel and op.phase != "update" else 0.0
    if _launch_s(op, rates) + around >= max(arithmetic, bandwidth):
        return spent + around, "launch"
    return spent + around, "arithmetic" if arithmetic >= bandwidth else "bandwidth"


def _spent(op: Op, rates: Rates, measured: Mapping[int, float]) -> float:
    """Seconds; calls are measured whole, and a part of one starts no faster."""
    whole = measured.get(op.signature)
    if whole is None:
        return reckon(op, rates)
    return min(whole, max(whole * op.part, _launch_s(op, rates)))


def _arithmetic_s(op: Op, rates: Rates) -> float:
    return op.executed / (rates.rate(op.form) or math.inf) if op.executed else 0.0


def _launch_s(op: Op, rates: Rates) -> float:
    return rates.launch_s * (1 + op.tensors // _TENSORS_A_LAUNCH) if op.kernel else 0.0


def as_tfloat32(trace: Trace) -> Trace:
    """The same step where float32 products of matrices run as TF32."""
    return replace(trace, ops=tuple(replace(o, form="tfloat32") if o.form == "float32" else o for o in trace.ops))


def lowered(trace: Trace, labels: Mapping[str, str]) -> Trace:
    """A half-precision step with the products of the modules of `labels` in their low-bit format, natively.

    Their operands are read in half, written in low bits and read again; results stay as they are.
    """
    return replace(trace, ops=tuple(_low(op, labels[op.module]) if op.module in labels else op for op in trace.ops))


def _low(op: Op, label: str) -> Op:
    """Of n bytes of 16-bit operands: n read, n / 2 written, n / 2 read."""
    return replace(op, form=label, bytes_read=2 * op.bytes_read) if op.executed else op
