"""What a square matrix product reaches on this machine, in TFLOP/s."""

from __future__ import annotations

import time
from contextlib import nullcontext

import torch

from mpt.formats.table import COMPUTE, format_of
from mpt.precision.switches import tfloat32_switched
from mpt.telemetry.device import wait
from mpt.types import DeviceFacts

SIDES = (256, 512, 1024, 2048, 4096, 8192)


def ceiling_tflops(name: str, facts: DeviceFacts, budget_s: float) -> float | None:
    """The best rate over sides that grow while the time lasts; None where the device has no such product, and for
    low-bit formats.

    One product is always timed, and the last one begun may end after `budget_s`.
    """
    if name not in COMPUTE:
        return None
    row = format_of(name)
    if name != row.storage and facts.type != "cuda":
        return None  # TF32 is a mode of NVIDIA GPUs: elsewhere this would time float32
    device = torch.device(facts.type, facts.index) if facts.type == "cuda" else torch.device(facts.type)
    switch = tfloat32_switched(name == "tfloat32") if facts.type == "cuda" else nullcontext()
    with switch, torch.no_grad():
        return _best(getattr(torch, row.storage), device, time.perf_counter() + budget_s)


def _best(dtype: torch.dtype, device: torch.device, until: float) -> float | None:
    best = None
    for side in SIDES:
        a = torch.ones(side, side, dtype=dtype, device=device)
        out = torch.empty_like(a)
        last_s = _once(a, out, device)  # the first product of a size pays for set-up
        while best is None or time.perf_counter() + last_s < until:
            last_s = _once(a, out, device)
            best = max(best or 0.0, 2 * side**3 / last_s / 1e12)
            if side < SIDES[-1] and last_s * 8 * 3 < until - time.perf_counter():
                break  # there is time for a larger one, which fills the device better
        else:
            return best
    return best


def _once(a: torch.Tensor, out: torch.Tensor, device: torch.device) -> float:
    """Seconds of one product, the device's queue included."""
    wait(device)
    start = time.perf_counter()
    torch.mm(a, a, out=out)
    wait(device)
    return time.perf_counter() - start
