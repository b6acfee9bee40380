"""Which low-bit products torchao has kernels for, on which GPUs: pure functions of the products. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from mpt.formats.operand import HIGH, Gemms, Operand, Product, gemms_of

KNOWN_TORCHAO = (0, 18)
"""The release whose functions are called; they are no public interface, so others are not trusted to have them."""
INSTALL = "pip install 'torchao==0.18.*'"


@dataclass(frozen=True)
class Recipe:
    """One of torchao's ways to train a linear.

    `needs` is the compute capability from which GPUs have it, `only` the generation it was built for, if one only.
    Sides of a layer are multiples of `multiple`; tokens are filled up to multiples of `tokens`.
    """

    name: str
    kind: str
    needs: tuple[int, int]
    multiple: int
    tokens: int
    only: int | None = None


TENSORWISE = Recipe("float8 by tensor", "float8", (8, 9), 16, 16)
ROWWISE = Recipe("float8 by row", "float8", (9, 0), 16, 16)
MXFP8 = Recipe("mxfp8", "mxfp8", (10, 0), 32, 128, only=10)
NVFP4 = Recipe("nvfp4", "nvfp4", (10, 0), 128, 128, only=10)
"""Source: torch, aten/src/ATen/native/cuda/ScaledBlas.cpp and RowwiseScaledMM.cu (which devices scaled_mm takes);
torchao 0.18, prototype/mx_formats/kernels.py (sm_100) and moe_training/nvfp4_training (multiples of 128)."""

RECIPES = (TENSORWISE, ROWWISE, MXFP8, NVFP4)
_WITHOUT = {
    "mxfp4": "torchao 0.18 has no training layer of mxfp4",
    "mxfp6": "torchao 0.18 has no training layer of mxfp6",
    "delayed": "torchao dropped delayed scales",
    "block": "torchao's linear by blocks of 128 has its own scales and takes no bias",
    "int8": "straight-through rounding has no kernel: int8 here is for training, not for speed",
}


def recipe_of(gemms: Gemms) -> Recipe | str:
    """The recipe that multiplies exactly these products, or why there is none."""
    if gemms == _nvfp4_recipe():
        return NVFP4
    if _is_mxfp8(gemms):
        return MXFP8
    missing = next((_WITHOUT[w] for op in gemms.operands() if op.low for w in _kinds(op) if w in _WITHOUT), None)
    if missing:
        return missing
    if all(_is_float8(op) for op in gemms.operands()):
        problem = _no_float8(gemms)
        if problem:
            return problem
        return ROWWISE if any(op.scale == "row" for op in gemms.operands()) else TENSORWISE
    if any(op.scale == "nv" for op in gemms.operands()):
        return "torchao 0.18 multiplies nvfp4 only by the recipe of precision=nvfp4"
    if any(op.scale == "mx" for op in gemms.operands()):
        return "torchao 0.18 multiplies mxfp8 only as e4m3 throughout, rounded to nearest, scales by floor or rceil"
    return "torchao 0.18 has no such products"


def known_torchao(version: str | None) -> bool:
    """Whether it is the release whose functions are called."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return found is not None and (int(found[1]), int(found[2])) == KNOWN_TORCHAO


def _kinds(op: Operand) -> tuple[str, ...]:
    if op.integer_bits:
        return (op.format,)
    return (f"mxfp{op.row.bits}" if op.scale == "mx" else op.scale,)


@cache
def _nvfp4_recipe() -> Gemms | None:
    """NVIDIA's recipe, which torchao's kernels fuse."""
    return gemms_of(
        {
            "forward": {"activation": "e2m1/nv", "weight": "e2m1/nv/square"},
            "grad_input": {"gradient": "e2m1/nv/stochastic", "weight": "e2m1/nv/square"},
            "grad_weight": {"gradient": "e2m1/nv/stochastic/hadamard", "activation": "e2m1/nv/hadamard"},
        }
    )


def _is_mxfp8(gemms: Gemms) -> bool:
    """E4M3 in blocks of 32 in all products; grad_weight may stay high."""
    wanted = [*_both(gemms.forward), *_both(gemms.grad_input)]
    if [op.format for op in _both(gemms.grad_weight)] != [HIGH, HIGH]:
        wanted += _both(gemms.grad_weight)
    rules = {op.rule for op in wanted}
    return len(rules) == 1 and rules <= {"floor", "rceil"} and all(op == _plain_mx(op) for op in wanted)


def _plain_mx(op: Operand) -> Operand:
    return Operand("e4m3", "mx", op.rule)


def _both(product: Product) -> list[Operand]:
    return [product.left, product.right]


def _is_float8(op: Operand) -> bool:
    if op.format == HIGH:
        return True
    plain = op.rounding == "nearest" and not op.hadamard
    return plain and op.format in ("e4m3", "e5m2") and op.scale in ("tensor", "row")


def _no_float8(gemms: Gemms) -> str:
    """What torchao's Float8LinearConfig does not take; empty where it does."""
    for product in (gemms.forward, gemms.grad_input, gemms.grad_weight):
        left, right = _both(product)
        if left.low != right.low:
            return "float8 kernels want both operands of a product in float8"
        if left.format == right.format == "e5m2":
            return "tensor cores have no product of e5m2 with e5m2"
    uses = (
        (gemms.forward.left, gemms.grad_weight.right),
        (gemms.forward.right, gemms.grad_input.right),
        (gemms.grad_input.left, gemms.grad_weight.left),
    )
    if any(a.low and b.low and a.format != b.format for a, b in uses):
        return "torchao casts an operand to one format in both of its products"
    if len({op.pow2 for op in gemms.operands() if op.low}) > 1:
        return "torchao rounds all scales to powers of two, or none"
    return "" if gemms.forward.low else "torchao has no float8 linear whose forward stays high"
