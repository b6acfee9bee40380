"""Which low-bit products a device and torchao have between them, as a pure table over DeviceFacts. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mpt.formats.operand import Gemms, Operand
from mpt.precision.low.recipes import INSTALL, MXFP8, NVFP4, TENSORWISE, Recipe, known_torchao, recipe_of
from mpt.types import DeviceFacts

if TYPE_CHECKING:
    from mpt.config.schema import PrecisionConfig

LOW: dict[str, tuple[int, int]] = {
    "float8_e4m3fn": (8, 9),
    "float8_e5m2": (8, 9),
    "mxfp8": (10, 0),
    "mxfp6": (10, 0),
    "mxfp4": (10, 0),
    "nvfp4": (10, 0),
    "int8": (7, 2),
}
"""Low-bit formats of which tensor cores make products, and the compute capability from which they do.
Source: NVIDIA, PTX ISA, mma and tcgen05 instructions, target notes."""

_BY_TORCHAO: dict[str, Recipe] = {
    "float8_e4m3fn": TENSORWISE,
    "float8_e5m2": TENSORWISE,
    "mxfp8": MXFP8,
    "nvfp4": NVFP4,
}
"""The least that torchao does with them: linears, scaled as `recipes` says."""

How = Literal["native", "emulated"]
Answer = tuple[How, str]


def products(gemms: Gemms, cfg: PrecisionConfig, facts: DeviceFacts) -> Answer:
    """How a policy's own products are had: hardware first, then whether torchao has exactly them."""
    if cfg.backend == "emulated":
        return "emulated", "asked for by precision.backend"
    lacking = [reason for kind in kinds(gemms) if (reason := _hardware_lacks(kind, facts))]
    recipe = recipe_of(gemms)
    if lacking:
        return "emulated", "; ".join(dict.fromkeys(lacking))
    if isinstance(recipe, str):
        return "emulated", recipe
    if cfg.compute != "bfloat16":
        return "emulated", f"torchao's products have results of bfloat16, not {cfg.compute}"
    return by_torchao(recipe, facts)


def kinds(gemms: Gemms) -> list[str]:
    """Rows of the table of low-bit formats that products need."""
    return list(dict.fromkeys(_kind(op) for op in gemms.operands() if op.low))


def _kind(op: Operand) -> str:
    if op.scale in ("mx", "nv"):
        by_scale = {"mx": f"mxfp{op.row.bits}", "nv": "nvfp4"}[op.scale]
        return by_scale if by_scale in LOW else op.label
    return op.format if op.integer_bits else op.row.name


def low_answer(kind: str, facts: DeviceFacts) -> Answer:
    """A row of the table, without a policy: the least that torchao does with the format."""
    lacking = _hardware_lacks(kind, facts)
    if lacking:
        return "emulated", lacking
    recipe = _BY_TORCHAO.get(kind)
    if recipe is None:
        return "emulated", f"tensor cores multiply {kind}, torchao has no training layer of it"
    return by_torchao(recipe, facts)


def _hardware_lacks(kind: str, facts: DeviceFacts) -> str:
    """Why the device can't multiply that format; empty where it can."""
    needed = LOW.get(kind)
    if needed is None:
        return f"no hardware multiplies {kind}"
    if facts.type != "cuda":
        return f"{facts.name} has no products of {kind}"
    return _too_old(kind, needed, facts)


def _too_old(what: str, needed: tuple[int, int], facts: DeviceFacts) -> str:
    if facts.capability is not None and facts.capability >= needed:
        return ""
    have = "unknown" if facts.capability is None else dotted(facts.capability)
    return f"compute capability {have}, {what} needs {dotted(needed)} or newer"


def by_torchao(recipe: Recipe, facts: DeviceFacts) -> Answer:
    """Whether torchao, as it is installed here, has kernels of that recipe for the device."""
    if facts.type != "cuda":
        return "emulated", f"{facts.name} has no products of {recipe.name}"
    old = _too_old(recipe.name, recipe.needs, facts)
    if old or facts.capability is None:
        return "emulated", old
    have = f"compute capability {dotted(facts.capability)}"
    if recipe.only is not None and facts.capability[0] != recipe.only:
        return "emulated", f"{have}, torchao's kernels of {recipe.name} are built for {recipe.only}.x"
    if facts.torchao is None:
        return "emulated", f"{have} has {recipe.name} with torchao, which is not installed: {INSTALL}"
    if not known_torchao(facts.torchao):
        return "emulated", f"torchao {facts.torchao} is not the release whose functions are known: {INSTALL}"
    return "native", f"{have} and torchao {facts.torchao} have linears of {recipe.name}"


def dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
