"""Inf and NaN in tensors, how far finite numbers reach, and what helps where an op makes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_KNOWN = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
_UNWRITTEN = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_")
"""Ops whose result holds whatever was in memory."""


class Extent(TypedDict):
    """Format, extremes of the finite part, and the share that is not finite."""

    format: str
    min: float | None
    max: float | None
    nonfinite_frac: float


def spoilt(t: Tensor) -> bool:
    """Whether a dense floating tensor has inf or NaN in it. Reads the device."""
    return t.dtype in _KNOWN and t.layout is torch.strided and bool(t.numel()) and not bool(t.isfinite().all())


def has_nan(t: Tensor) -> bool:
    """Whether a floating tensor has NaN in it. Reads the device."""
    return bool(t.isnan().any())


def deliberate(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an op was handed inf or NaN as a number by the code, as masks are written, or wrote nothing."""
    if func.overloadpacket.__name__ in _UNWRITTEN:
        return True
    return any(isinstance(v, float) and v - v != 0 for v in tree_leaves((args, kwargs)))


def divides_by_zero(func: Any, args: Any) -> bool:
    """Whether the last tensor operand is a divisor with a 0 in it. Reads the device."""
    operands = [a for a in args if isinstance(a, Tensor)]
    return func.overloadpacket.__name__ in _DIVIDES and bool(operands) and bool((operands[-1] == 0).any())


def extent(given: Sequence[Tensor]) -> Extent | None:
    """Of all the tensors together, told in the format of the first; None where there is nothing. Reads the device."""
    flat = list(_flat(given))
    if not flat:
        return None
    numbers = torch.cat(flat)
    finite = numbers[numbers.isfinite()]
    return {
        "format": str(given[0].dtype).removeprefix("torch."),
        "min": float(finite.min()) if finite.numel() else None,
        "max": float(finite.max()) if finite.numel() else None,
        "nonfinite_frac": 1 - finite.numel() / numbers.numel(),
    }


def _flat(given: Iterable[Tensor]) -> Iterable[Tensor]:
    for t in given:
        if t.numel() and t.layout is torch.strided:
            real = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
            yield real.detach().reshape(-1).float()


_DIVIDES = ("div", "div_", "reciprocal", "rsqrt")
_LOGS = ("log", "log2", "log10", "log1p", "logit", "atanh", "xlogy", "special_xlogy")
_ROOTS = ("sqrt", "pow", "acos", "asin", "norm", "linalg_vector_norm", "std", "var")
_SOFTMAX = ("softmax", "log_softmax", "logsoftmax", "safe_softmax")


def advice(op: str, made: str, of: str, format_name: str, module: str) -> str:
    """What to do where `op` made inf or NaN in that format."""
    if of == "inf":
        return (
            "a row of nothing but -inf? leave one entry of each unmasked"
            if op in _SOFTMAX
            else "inf - inf and 0 · inf are nan; mask with a finite number, or after this op"
        )
    if of == "zero":
        return f"add an eps that {format_name} holds" + _SMALLEST.get(format_name, "")
    if op in _LOGS:
        return "its operand reaches the edge of where it is defined: clamp it by an eps that the format holds"
    if op in _ROOTS and (made == "nan" or format_name != "float16"):
        return "it has no finite value or slope there: clamp its operand away from it before, not after"
    if format_name == "float16":
        keep = f"keep it in float32 (precision.layers=[{{match: {module}, format: float32}}])" if module else ""
        return f"float16 ends at 65504: {keep or 'compute it on `.float()` numbers'}, or use precision=bf16"
    return "the numbers themselves are too large: lower optimizer.lr, set trainer.clip_norm, or clamp its operand"


_SMALLEST = {"float16": " (1e-8 is 0 in it; 1e-6 is not)"}
"""float16's smallest number is 2^-24, 6e-8."""
