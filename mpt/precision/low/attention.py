"""Attention whose two products have low-bit operands: scores of queries with keys, mixtures of values.

N heads of all samples, L queries, S keys, D width. Rounding is straight-through: gradients are those of products of
the rounded operands. Sums, scores and softmax are float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from mpt.formats.attention import Attention
from mpt.formats.operand import Operand
from mpt.formats.quantise import quantise
from mpt.precision.low.operands import told


def install_attention(model: nn.Module, attending: Mapping[str, Attention], compute: torch.dtype) -> None:
    """The named modules attend so where autocast is on, and as before elsewhere."""
    modules = dict(model.named_modules())
    for name, operands in attending.items():
        _replace(modules[name], operands, compute)


def _replace(module: nn.Module, operands: Attention, compute: torch.dtype) -> None:
    plain: Callable[..., Any] = module.forward
    mode = _Intercepted(operands, compute)

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        first = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
        if first is None or not torch.is_autocast_enabled(first.device.type):
            return plain(*args, **kwargs)
        with mode:
            return plain(*args, **kwargs)

    module.forward = forward


class _Intercepted(TorchFunctionMode):
    """While entered, scaled_dot_product_attention is ours."""

    def __init__(self, operands: Attention, compute: torch.dtype) -> None:
        super().__init__()
        self._operands, self._compute = operands, compute

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return attend(self._operands, self._compute, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def attend(
    operands: Attention,
    compute: torch.dtype,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's scaled_dot_product_attention with rounded operands; its result is in the compute format.

    Shapes: query (…, L, D), key (…, S, D), value (…, S, E) to (…, L, E).
    """
    with torch.autocast(query.device.type, enabled=False):
        if enable_gqa:
            key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
        shapes = (query.shape[:-2], key.shape[:-2], value.shape[:-2])
        lead = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        q, k, v = (t.to(compute).expand(*lead, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in (query, key, value))
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = _product(q, k, operands.query, operands.key, compute) * factor
        scores = _masked(scores.view(*lead, *scores.shape[-2:]), attn_mask, is_causal)
        weights = F.dropout(_softmax(scores, attn_mask), dropout_p).to(compute).flatten(0, -3)
        mixed = _product(weights, v.transpose(1, 2), operands.probability, operands.value, compute)
        return mixed.to(compute).view(*lead, *mixed.shape[-2:])


def _masked(scores: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        return scores.masked_fill(~allowed, -math.inf)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.float()


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """A query that may see nothing gets zeros, as torch gives it."""
    if mask is None:
        return scores.softmax(-1)
    blind = scores.isneginf().all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _product(left: Tensor, right: Tensor, a: Operand, b: Operand, compute: torch.dtype) -> Tensor:
    out: Tensor = _LowProduct.apply(left, right, a, b, compute)
    return out


class _LowProduct(torch.autograd.Function):
    """left (N, R, K) · right (N, M, K)ᵀ in float32, blocks along K; gradients multiply in the compute format."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, a: Operand, b: Operand, compute: torch.dtype) -> Tensor:
        x, y = _rounded(left, a, compute), _rounded(right, b, compute)
        ctx.save_for_backward(x, y)
        ctx.operands, ctx.compute = (a, b), compute
        return torch.bmm(x, y.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        compute = ctx.compute
        g = told(grad.to(compute).float(), _HIGH, compute)
        told(x, ctx.operands[0], compute)
        told(y, ctx.operands[1], compute)
        left = torch.bmm(g, y).to(compute) if ctx.needs_input_grad[0] else None
        right = torch.bmm(g.transpose(1, 2), x).to(compute) if ctx.needs_input_grad[1] else None
        return left, right, None, None, None


_HIGH = Operand("high")


def _rounded(x: Tensor, op: Operand, compute: torch.dtype) -> Tensor:
    out = quantise(x, op).contiguous() if op.low else x.float().contiguous()
    return told(out, op, compute)
