"""Which number formats a device has, as a pure table over DeviceFacts, and what a policy becomes on it. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mpt.errors import PrecisionError, Problem
from mpt.formats.table import COMPUTE, format_of
from mpt.types import DeviceFacts, FormatSupport

if TYPE_CHECKING:
    from mpt.config.schema import PrecisionConfig

How = Literal["native", "emulated"]
_Answer = tuple[How, str]


@dataclass(frozen=True)
class Mechanism:
    """What a policy's compute format becomes on a device: the format, the way it is had, and why."""

    compute: str
    how: How
    reason: str
    device: str

    @property
    def half(self) -> bool:
        """Whether operands of matmul and convolution are tensors of 16 bits."""
        return format_of(self.compute).storage != "float32"

    @property
    def emulated(self) -> bool:
        return self.how == "emulated"


def support(facts: DeviceFacts) -> list[FormatSupport]:
    """One answer for each format of the table: whether matmul and convolution have it on that device."""
    rules = _RULES.get(facts.type, {})
    return [FormatSupport(name, *rules.get(name, _unknown)(facts)) for name in COMPUTE]


def resolve(cfg: PrecisionConfig, facts: DeviceFacts) -> Mechanism:
    """What `cfg` becomes on that device; `backend` decides between the native way and the emulated.

    Raises: PrecisionError for an unknown format, roles that don't fit together, or a native backend that is not there.
    """
    _check_roles(cfg)
    found = next(s for s in support(facts) if s.format == cfg.compute)
    how, reason = found.how, found.reason
    if cfg.backend == "native" and not _may_be_native(cfg.compute, facts, how):
        raise PrecisionError(_not_native(cfg, facts, reason))
    if cfg.backend == "native":
        how, reason = "native", reason if how == "native" else f"asked for; {_cpu_float16_flags(facts)}"
    if cfg.backend == "emulated" and cfg.compute != "float32":
        how, reason = "emulated", "asked for by precision.backend"
    return Mechanism(cfg.compute, how, reason, facts.type)


def _check_roles(cfg: PrecisionConfig) -> None:
    problems = []
    for role in ("compute", "param", "master"):
        name = getattr(cfg, role)
        if name is not None and name not in COMPUTE:
            problems.append(Problem(f"precision.{role}", f"got `{name}`", "one of " + ", ".join(COMPUTE)))
    if cfg.param not in ("float32", cfg.compute):
        what = f"got `{cfg.param}` with precision.compute={cfg.compute}"
        problems.append(Problem("precision.param", what, f"want float32 or {cfg.compute}"))
    if cfg.param == "tfloat32":
        problems.append(Problem("precision.param", "got `tfloat32`", "TF32 is a way to multiply: store float32"))
    if cfg.master not in (None, "float32"):
        problems.append(Problem("precision.master", f"got `{cfg.master}`", "want float32, or null for no copy"))
    if problems:
        raise PrecisionError(*problems)


def _may_be_native(name: str, facts: DeviceFacts, how: How) -> bool:
    return how == "native" or (facts.type == "cpu" and name == "float16" and bool(_cpu_float16_flags(facts)))


def _not_native(cfg: PrecisionConfig, facts: DeviceFacts, reason: str) -> Problem:
    native = [s.format for s in support(facts) if s.how == "native"]
    return Problem(
        "precision.backend",
        f"got `native`, but {facts.name} has no {cfg.compute}: {reason}",
        f"precision.backend=auto emulates it with the same numerics; native here: {', '.join(native)}",
    )


def _always(facts: DeviceFacts) -> _Answer:
    return "native", "IEEE 754 single precision is everywhere"


def _unknown(facts: DeviceFacts) -> _Answer:
    return "emulated", f"nothing is known of {facts.type} and this format"


def _cuda(needed: tuple[int, int], why: str) -> Callable[[DeviceFacts], _Answer]:
    """By compute capability alone: torch's own `is_bf16_supported` counts its emulation as support."""

    def answer(facts: DeviceFacts) -> _Answer:
        if facts.capability is None:
            return "emulated", "the compute capability is not known"
        have = f"compute capability {_dotted(facts.capability)}"
        if facts.capability >= needed:
            return "native", f"{have} has {why}"
        return "emulated", f"{have}, needs {_dotted(needed)} or newer"

    return answer


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _cpu_float16_flags(facts: DeviceFacts) -> str:
    return " and ".join(f for f in ("avx512_fp16", "amx_fp16") if f in facts.features)


def _cpu_float16(facts: DeviceFacts) -> _Answer:
    flags = _cpu_float16_flags(facts)
    if flags:
        return "emulated", f"the CPU has {flags}, torch's float16 kernels are slow still; backend=native uses them"
    return "emulated", "the CPU has no float16 arithmetic (avx512_fp16), torch's own kernels are 35-95 times slower"


def _cpu_bfloat16(facts: DeviceFacts) -> _Answer:
    flags = [f for f in ("amx_bf16", "avx512_bf16", "bf16") if f in facts.features]
    if flags:
        return "native", f"the CPU has {' and '.join(flags)}"
    return "native", "torch has kernels; the CPU has no bfloat16 instructions: expect it slower than float32"


def _no_tfloat32(facts: DeviceFacts) -> _Answer:
    return "emulated", "TF32 is a mode of NVIDIA GPUs of compute capability 8.0 and newer"


def _mps(facts: DeviceFacts) -> _Answer:
    return "native", f"Metal has it, with torch {facts.torch}"


_RULES: dict[str, dict[str, Callable[[DeviceFacts], _Answer]]] = {
    "cuda": {
        "float32": _always,
        "tfloat32": _cuda((8, 0), "TF32 tensor cores"),
        "bfloat16": _cuda((8, 0), "bfloat16 tensor cores"),
        "float16": _cuda((5, 3), "float16 arithmetic (tensor cores from 7.0)"),
    },
    "cpu": {"float32": _always, "tfloat32": _no_tfloat32, "bfloat16": _cpu_bfloat16, "float16": _cpu_float16},
    "mps": {"float32": _always, "tfloat32": _no_tfloat32, "bfloat16": _mps, "float16": _mps},
}
