"""About one second of measuring on the present device: what products, copies and calls cost, and this step's ops."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_unflatten

from mpt.checkpoint.snapshot import fits
from mpt.dispatch import Mode
from mpt.predict.memory import memory
from mpt.predict.operands import Call, TensorSpec
from mpt.predict.replay import Replay
from mpt.predict.rnn import READS_WORKSPACE
from mpt.predict.roofline import Rates, Time, reckon, roofline, times_of
from mpt.predict.trace import Trace
from mpt.rng import capture, restore
from mpt.telemetry.device import wait
from mpt.telemetry.matmul import ceiling_tflops
from mpt.types import DeviceFacts, Unmeasured
from mpt.usercode import FAULTS

BUDGET_S = 1.0
_COPY_BYTES = 32 * 2**20
_CHAIN = 64
_PAIRS = 8
_RATES_SHARE = 0.25
"""Of the budget, for rates; the rest is for the step's own ops, those that seem longest first."""
_REPEATS = 5
_BETWEEN_BYTES = 8 * 2**20
"""Written before each timed call where a step holds more: an op then finds in the caches what others left there."""
_LONG_S = 0.02
"""Ops that take longer are timed once."""


@dataclass(frozen=True)
class Calibration:
    """Rates of the present device, seconds of ops by signature, and of what the host does around each op.

    `covered` is the share of the step's time that was measured op by op.
    """

    rates: Rates
    measured: dict[int, float]
    overhead_s: float
    covered: float
    spent_s: float


def calibrate(trace: Trace, facts: DeviceFacts, accumulate: int, budget_s: float = BUDGET_S) -> Calibration:
    """Measures for about `budget_s`, under the switches that are set now; what was begun may end after it.

    The step's ops are timed in their order where two steps fit into about that, else one by one, the longest first.
    Random states are left as they were.
    """
    device = torch.device(facts.type, facts.index) if facts.type == "cuda" else torch.device(facts.type)
    state = capture(device)
    try:
        return _calibrate(trace, facts, device, accumulate, budget_s)
    finally:
        restore(state, device)


def _calibrate(trace: Trace, facts: DeviceFacts, device: torch.device, accumulate: int, budget_s: float) -> Calibration:
    start = time.perf_counter()
    forms = sorted({op.form for op in trace.ops if op.executed})
    each_s = budget_s * _RATES_SHARE / (len(forms) + 1)
    found = {form: ceiling_tflops(form, facts, each_s) for form in forms}
    flops = {form: 1e12 * rate for form, rate in found.items() if rate is not None}
    launch_s, overhead_s = _per_call(device)
    rates = Rates(flops, _bandwidth(device), launch_s)
    wanted = _by_weight(trace, rates, accumulate)
    total = sum(weight for _, weight in wanted) or 1.0
    if trace.flow and _has_room(trace, facts) and sum(reckon(op, rates) for op in trace.ops) < budget_s:
        measured = Replay(trace, device).seconds(start + budget_s)
    else:
        measured = _apart(trace, wanted, device, start + budget_s)
    covered = sum(weight for signature, weight in wanted if signature in measured)
    _extend(trace, rates, measured)
    return Calibration(rates, measured, overhead_s, covered / total, time.perf_counter() - start)


def _apart(trace: Trace, wanted: list[tuple[int, float]], device: torch.device, until_s: float) -> dict[int, float]:
    """Seconds of a call by signature, each tried on its own, the longest first, until that time."""
    measured: dict[int, float] = {}
    crowded = memory(trace).peak_bytes > _BETWEEN_BYTES
    others = torch.zeros(_BETWEEN_BYTES // 4, device=device) if crowded else None
    for signature, _ in wanted:
        if time.perf_counter() > until_s:
            break
        seconds = _timed(trace.calls[signature], device, others)
        if seconds is not None:
            measured[signature] = seconds
    return measured


def _has_room(trace: Trace, facts: DeviceFacts) -> bool:
    """Whether the step's tensors can lie on the present device."""
    peak = memory(trace).peak_bytes
    on_device = facts.memory_bytes is None or 2 * peak < facts.memory_bytes
    return on_device and (facts.type == "cuda" or fits(peak))


def _by_weight(trace: Trace, rates: Rates, accumulate: int) -> list[tuple[int, float]]:
    """Signatures with the seconds that they seem to take in a step, the longest first."""
    weights: Counter[int] = Counter()
    for op in trace.ops:
        if not op.kernel:
            continue
        weights[op.signature] += reckon(op, rates) * times_of(op, accumulate)  # type: ignore[assignment]
    return [(signature, float(weight)) for signature, weight in weights.most_common()]


def _extend(trace: Trace, rates: Rates, measured: dict[int, float]) -> None:
    """Ops that there was no time for take as much longer than reckoned as those of their name that were timed."""
    reckoned: dict[int, float] = {}
    names: dict[int, str] = {}
    for op in trace.ops:
        if op.kernel:
            reckoned[op.signature], names[op.signature] = reckon(op, rates), op.name
    done: Counter[str] = Counter()
    ideal: Counter[str] = Counter()
    for signature, seconds in measured.items():
        for name in (names[signature], ""):
            done[name] += seconds  # type: ignore[assignment]
            ideal[name] += reckoned[signature]  # type: ignore[assignment]
    for signature, seconds in reckoned.items():
        name = names[signature] if ideal[names[signature]] else ""
        if signature not in measured and ideal[name]:
            measured[signature] = seconds * done[name] / ideal[name]


def _timed(call: Call, device: torch.device, others: Tensor | None) -> float | None:
    """Seconds of one call on operands of that kind; None where it can't be made again.

    What takes a tensor without elements is not tried: a trace shows a kernel's workspace so, and the kernel reads it;
    nor are those that are known to read one.
    """
    if call.func in READS_WORKSPACE or any(isinstance(leaf, TensorSpec) and 0 in leaf.shape for leaf in call.leaves):
        return None
    try:
        with torch.no_grad():
            args, kwargs = tree_unflatten([_real(leaf, device) for leaf in call.leaves], call.spec)
            first_s = _median_s(lambda: call.func(*args, **kwargs), device, 1, others)
            return _median_s(lambda: call.func(*args, **kwargs), device, _REPEATS if first_s < _LONG_S else 1, others)
    except FAULTS:
        return None


def _real(leaf: Any, device: torch.device) -> Any:
    """A tensor of that kind with numbers in it: integers are 0, which is a place in any table."""
    if not isinstance(leaf, TensorSpec):
        return leaf
    tensor = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=device)
    return tensor.fill_(0.5 if tensor.dtype.is_floating_point else tensor.dtype is torch.bool)


def _per_call(device: torch.device) -> tuple[float, float]:
    """Seconds of an op on almost nothing, and what autograd, modules and Python add to each in a step."""
    raw = torch.ones(8, device=device)

    def bare() -> None:
        y = raw
        for _ in range(_CHAIN):
            y = torch.ops.aten.mul.Tensor(y, raw)

    with torch.no_grad():
        bare()
        launch_s = _median_s(bare, device, 7) / _CHAIN
    return launch_s, _overhead_s(device)


def _overhead_s(device: torch.device) -> float:
    """What a small net's forward and backward take beyond its ops, called one by one, for each of them."""
    net = nn.Sequential(*(m for _ in range(_PAIRS) for m in (nn.Linear(8, 8), nn.ReLU()))).to(device)
    x = torch.ones(8, 8, device=device)

    def step() -> None:
        net.zero_grad()
        net(x).sum().backward()

    with _Calls() as calls:
        step()
    with torch.no_grad():
        alone_s = sum(_median_s(call, device, 5) for call in calls.found)
    return max(0.0, _median_s(step, device, 15) - alone_s) / len(calls.found)


class _Calls(Mode):
    """Every op that is no view, to be called again."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.found.append(partial(func, *args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _bandwidth(device: torch.device) -> float:
    """Bytes read and written each second by a copy that no cache holds."""
    source = torch.ones(_COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * _COPY_BYTES / _median_s(lambda: target.copy_(source), device, 5)


def _median_s(run: Callable[[], object], device: torch.device, repeats: int, others: Tensor | None = None) -> float:
    """`others` is written before each call."""
    spent = []
    for _ in range(repeats):
        if others is not None:
            others.add_(1)
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def calibrated(trace: Trace, found: Calibration, accumulate: int) -> Time | Unmeasured:
    """The step's time on the device that was measured."""
    return roofline(trace, found.rates, accumulate, found.measured, found.overhead_s)
