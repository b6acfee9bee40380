"""How much of a device's peak a run used: model FLOPs utilisation. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from mpt.config.gpus import gpu_of
from mpt.types import DeviceFacts, Unmeasured

WAY_OUT = "trainer.peak_tflops=N gives the dense peak of one that you know"


@dataclass(frozen=True)
class Work:
    """Model FLOPs of one micro-batch, by the format of the operands, and ops that multiply and could not be counted."""

    flops: Mapping[str, int]
    uncounted: Set[str] = frozenset()

    @property
    def total(self) -> int:
        return sum(self.flops.values())


def peak_tflops(work: Work, device: DeviceFacts, given: float | None) -> float | Unmeasured:
    """The peak of this mix of formats, blended by time.

    `given` stands for all formats of a device that the table lacks or that the user knows better.
    """
    if not work.total:
        return Unmeasured("no product was counted")
    if given is not None:
        return given
    gpu = gpu_of(device.name) if device.type == "cuda" else None
    if gpu is None:
        return Unmeasured(f"no peaks of {device.name} are known: {WAY_OUT}")
    return blended(work, gpu.peak_tflops, lambda form: f"no peak of {gpu.name} for {form} is known: {WAY_OUT}")


def blended(work: Work, rate: Callable[[str], float | None], why_none: Callable[[str], str]) -> float | Unmeasured:
    """The rate of this mix of formats: 1 / Σ (share of the FLOPs / rate of their format)."""
    if not work.total:
        return Unmeasured("no product was counted")
    time = 0.0
    for form, flops in work.flops.items():
        of_form = rate(form)
        if of_form is None:
            return Unmeasured(why_none(form))
        time += flops / work.total / of_form
    return 1 / time


def mfu(work: Work, peak: float | Unmeasured, step_s: float | Unmeasured, emulated: str) -> float | Unmeasured:
    """The share of `peak` that a step of this much work reached. `emulated`: why no speed is claimed, else empty."""
    if emulated:
        return Unmeasured(emulated)
    if isinstance(peak, Unmeasured):
        return peak
    if isinstance(step_s, Unmeasured):
        return step_s
    if work.uncounted:
        return Unmeasured(f"FLOPs of {', '.join(sorted(work.uncounted))} are not counted")
    return work.total / step_s / (peak * 1e12)
