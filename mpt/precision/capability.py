"""Which number formats a device has, as a pure table over DeviceFacts, and what a policy becomes on it. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpt.config.update import SPLIT
from mpt.errors import PrecisionError, Problem
from mpt.formats.operand import Gemms
from mpt.formats.table import COMPUTE, format_of
from mpt.precision.low.hardware import LOW, Answer, How, by_torchao, dotted, kinds, low_answer, products
from mpt.precision.low.recipes import INSTALL, RECIPES
from mpt.precision.low.settings import low_bit
from mpt.types import DeviceFacts, FormatSupport

if TYPE_CHECKING:
    from mpt.config.schema import PrecisionConfig


@dataclass(frozen=True)
class Mechanism:
    """What a policy's compute format becomes on a device: the format, the way it is had, and why."""

    compute: str
    how: How
    reason: str
    device: str
    low: str = ""
    low_how: How = "emulated"
    low_reason: str = ""
    scale_rules: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    """Names of torchao's recipes that low-bit linears may take here."""

    @property
    def effective(self) -> str:
        """The narrowest that operands have, as the report names it."""
        return f"{self.low} over {self.compute}" if self.low else self.compute

    @property
    def told(self) -> str:
        """Why, in words."""
        return f"{self.low_reason}; {self.reason}" if self.low else self.reason

    @property
    def backend(self) -> How:
        """Emulated if any of it is."""
        return "emulated" if self.low and self.low_how == "emulated" else self.how

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
    wide = [FormatSupport(name, *rules.get(name, _unknown)(facts)) for name in COMPUTE]
    return wide + [FormatSupport(name, *low_answer(name, facts)) for name in LOW]


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
    return Mechanism(cfg.compute, how, reason, facts.type, *_resolve_low(cfg, facts))


def _resolve_low(cfg: PrecisionConfig, facts: DeviceFacts) -> tuple[str, How, str, tuple[str, ...], tuple[str, ...]]:
    """The low-bit products of a policy: formats, how and why, scale rules, and recipes that its layers may take."""
    low = low_bit(cfg)
    if low is None:
        return "", "emulated", "", (), ()
    how, reason = products(low.gemms, cfg, facts)
    if cfg.backend == "native" and how != "native":
        raise PrecisionError(_no_native_products(cfg, facts, low.gemms, reason))
    rules = {op.rule for op in low.gemms.operands() if op.scale == "mx"}
    wanted = cfg.backend != "emulated" and cfg.compute == "bfloat16"
    native = tuple(r.name for r in RECIPES if wanted and by_torchao(r, facts)[0] == "native")
    return low.gemms.label, how, reason, tuple(sorted(rules)), native


def _no_native_products(cfg: PrecisionConfig, facts: DeviceFacts, gemms: Gemms, reason: str) -> Problem:
    formats = " and ".join(kinds(gemms))
    native = [s.format for s in support(facts) if s.how == "native"]
    hint = "precision.backend=auto emulates it with the same roundings"
    if INSTALL not in reason:
        hint += f"; native here: {', '.join(native)}"
    return Problem("precision.backend", f"got `native`, but {facts.name} emulates {formats}: {reason}", hint)


def _check_roles(cfg: PrecisionConfig) -> None:
    problems = []
    for role in ("compute", "param"):
        name = getattr(cfg, role)
        if name not in COMPUTE:
            problems.append(Problem(f"precision.{role}", f"got `{name}`", "one of " + ", ".join(COMPUTE)))
    if cfg.param not in ("float32", cfg.compute):
        what = f"got `{cfg.param}` with precision.compute={cfg.compute}"
        problems.append(Problem("precision.param", what, f"want float32 or {cfg.compute}"))
    if cfg.param == "tfloat32":
        problems.append(Problem("precision.param", "got `tfloat32`", "TF32 is a way to multiply: store float32"))
    if cfg.master not in (None, "float32", SPLIT):
        problems.append(Problem("precision.master", f"got `{cfg.master}`", "want float32, split, or null for no copy"))
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


def _always(facts: DeviceFacts) -> Answer:
    return "native", "IEEE 754 single precision is everywhere"


def _unknown(facts: DeviceFacts) -> Answer:
    return "emulated", f"nothing is known of {facts.type} and this format"


def _cuda(needed: tuple[int, int], why: str) -> Callable[[DeviceFacts], Answer]:
    """By compute capability alone: torch's own `is_bf16_supported` counts its emulation as support."""

    def answer(facts: DeviceFacts) -> Answer:
        if facts.capability is None:
            return "emulated", "the compute capability is not known"
        have = f"compute capability {dotted(facts.capability)}"
        if facts.capability >= needed:
            return "native", f"{have} has {why}"
        return "emulated", f"{have}, needs {dotted(needed)} or newer"

    return answer


def _cpu_float16_flags(facts: DeviceFacts) -> str:
    return " and ".join(f for f in ("avx512_fp16", "amx_fp16") if f in facts.features)


def _cpu_float16(facts: DeviceFacts) -> Answer:
    flags = _cpu_float16_flags(facts)
    if flags:
        return "emulated", f"the CPU has {flags}, torch's float16 kernels are slow still; backend=native uses them"
    return "emulated", "the CPU has no float16 arithmetic (avx512_fp16), torch's own kernels are 35-95 times slower"


def _cpu_bfloat16(facts: DeviceFacts) -> Answer:
    flags = [f for f in ("amx_bf16", "avx512_bf16", "bf16") if f in facts.features]
    if flags:
        return "native", f"the CPU has {' and '.join(flags)}"
    return "native", "torch has kernels; the CPU has no bfloat16 instructions: expect it slower than float32"


def _no_tfloat32(facts: DeviceFacts) -> Answer:
    return "emulated", "TF32 is a mode of NVIDIA GPUs of compute capability 8.0 and newer"


def _mps(facts: DeviceFacts) -> Answer:
    return "native", f"Metal has it, with torch {facts.torch}"


_RULES: dict[str, dict[str, Callable[[DeviceFacts], Answer]]] = {
    "cuda": {
        "float32": _always,
        "tfloat32": _cuda((8, 0), "TF32 tensor cores"),
        "bfloat16": _cuda((8, 0), "bfloat16 tensor cores"),
        "float16": _cuda((5, 3), "float16 arithmetic (tensor cores from 7.0)"),
    },
    "cpu": {"float32": _always, "tfloat32": _no_tfloat32, "bfloat16": _cpu_bfloat16, "float16": _cpu_float16},
    "mps": {"float32": _always, "tfloat32": _no_tfloat32, "bfloat16": _mps, "float16": _mps},
}
