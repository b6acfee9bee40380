"""Floating-point operations of products, from the shapes of their operands: a multiplication and an addition are two.

Model FLOPs, as MFU counts them: attention whole although a causal one skips half of it, and its backward without the
scores that kernels compute again. Source: Chowdhery et al. 2022, "PaLM", appendix B; torch.utils.flop_counter has the
same numbers for what it knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpt.precision.emulate import GEMMS

_Formula = Callable[[tuple[Any, ...]], int]


def flops(func: Any, args: tuple[Any, ...]) -> int | None:
    """Of one op below autograd: 0 for what is no product, None for one that can't be counted (recurrent layers)."""
    name = func.overloadpacket.__name__
    formula = _FORMULAS.get(name)
    if formula is not None:
        return formula(args)
    return None if func in GEMMS or name in _UNCOUNTED else 0


def executed(func: Any, args: tuple[Any, ...], model: int) -> int:
    """What a kernel does for `model` FLOPs: causal attention skips half, its backward computes the scores again."""
    name = func.overloadpacket.__name__.removesuffix("_backward")
    if name not in _ATTENTIONS:
        return model
    backward = func.overloadpacket.__name__ != name
    done = model * 5 // 4 if backward else model
    return done // 2 if any(arg is True for arg in args[3:]) else done


def _all(shape: Any) -> int:
    return int(math.prod(shape))


def _product(left: int, right: int) -> _Formula:
    """Matrices at these places of the arguments: (…, N, K) · (…, K, M)."""
    return lambda args: 2 * int(args[left].numel()) * int(args[right].shape[-1])


def _vector(place: int) -> _Formula:
    return lambda args: 2 * int(args[place].numel())


def _outer(args: tuple[Any, ...]) -> int:
    return 2 * int(args[1].numel()) * int(args[2].numel())


def _linear(args: tuple[Any, ...]) -> int:
    return 2 * int(args[0].numel()) * int(args[1].shape[0])


def _linear_backward(args: tuple[Any, ...]) -> int:
    x, _, weight, wanted = args[:4]
    return int(sum(wanted[:2])) * 2 * int(x.numel()) * int(weight.shape[0])


def _convolution(args: tuple[Any, ...]) -> int:
    x, weight = args[0], args[1]
    return _taps(x.numel() if args[6] else _results(*args[:6]), weight)


def _convolution_backward(args: tuple[Any, ...]) -> int:
    grad, x, weight, wanted = args[0], args[1], args[2], args[-1]
    return int(sum(wanted[:2])) * _taps((x if args[7] else grad).numel(), weight)


def _taps(elements: int, weight: Any) -> int:
    """Each of `elements` meets one filter: weight (filters, channels of a group, taps…)."""
    return 2 * elements * _all(weight.shape[1:])


def _results(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any) -> int:
    """Elements of a convolution's result: x (B, C, S…)."""
    sides = [
        (side + 2 * _nth(padding, i) - _nth(dilation, i) * (taps - 1) - 1) // _nth(stride, i) + 1
        for i, (side, taps) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=True))
    ]
    return int(x.shape[0]) * int(weight.shape[0]) * _all(sides)


def _nth(values: Any, index: int) -> int:
    """Of a list with one number for each side, or one for all."""
    return int(values[index] if len(values) > 1 else values[0])


def _attention(first: int, products: int) -> _Formula:
    """`products` times scores and mixture. q, k, v (…, L, E) from the argument `first` on."""

    def formula(args: tuple[Any, ...]) -> int:
        q, k, v = args[first : first + 3]
        return products * 2 * _all(q.shape[:-1]) * int(k.shape[-2]) * int(q.shape[-1] + v.shape[-1])

    return formula


_ATTENTIONS = (
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    "_scaled_dot_product_attention_math_for_mps",
)
_FORMULAS: dict[str, _Formula] = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm"), _product(0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "_addmm_activation"), _product(1, 2)),
    **dict.fromkeys(("mv", "dot", "vdot"), _vector(0)),
    "addmv": _vector(1),
    "addr": _outer,
    "linear": _linear,
    "linear_backward": _linear_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(_ATTENTIONS, _attention(0, 1)),
    **{f"{name}_backward": _attention(1, 2) for name in _ATTENTIONS},
}
_UNCOUNTED = ("_cudnn_rnn", "_cudnn_rnn_backward", "miopen_rnn", "miopen_rnn_backward", "_native_multi_head_attention")
