"""A linear whose three products have operands of their own formats. T tokens, K inputs, N outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpt.formats.operand import Operand, Product
from mpt.precision.low.operands import Layer, told


class LowLinear(torch.autograd.Function):
    """Quantised operands, float32 sums, results in the compute format; the bias is added before they are rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer, record: bool) -> Tensor:
        x_TK, w_NK = x.reshape(-1, x.shape[-1]), weight.to(layer.compute)
        product = layer.gemms.forward
        a = layer.quantised(x_TK, product.left, "activation", record)
        w = layer.quantised(w_NK, product.right, "weight", record)
        ctx.save_for_backward(a if layer.keeps_activation else x_TK, w if layer.keeps_weight else w_NK)
        ctx.layer, ctx.record, ctx.shape, ctx.has_bias = layer, record, x.shape, bias is not None
        ctx.weight_dtype = weight.dtype
        out = multiply(layer, product, a, w, bias)
        # no view: autograd forbids to change one in place, as an activation after the layer may
        return torch.ops.aten._unsafe_view.default(out, [*x.shape[:-1], out.shape[-1]])  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        layer: Layer = ctx.layer
        x_TK, w_NK = ctx.saved_tensors
        g_TN = grad.reshape(-1, grad.shape[-1]).to(layer.compute)
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = _grad_input(layer, g_TN, w_NK, ctx.record).view(ctx.shape)
        if ctx.needs_input_grad[1]:
            grad_w = _grad_weight(layer, g_TN, x_TK, ctx.record).to(ctx.weight_dtype)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_b = g_TN.sum(0, dtype=torch.float32)
        return grad_x, grad_w, grad_b, None, None


def _grad_input(layer: Layer, g_TN: Tensor, w_NK: Tensor, record: bool) -> Tensor:
    product = layer.gemms.grad_input
    g = layer.quantised(g_TN, product.left, "gradient", record)
    w = w_NK.t() if layer.keeps_weight else layer.quantised(w_NK.t(), product.right, "weight", False)
    return multiply(layer, known(product, layer.keeps_weight, layer.gemms.forward.right), g, w, None)


def _grad_weight(layer: Layer, g_TN: Tensor, x_TK: Tensor, record: bool) -> Tensor:
    product = layer.gemms.grad_weight
    g = layer.quantised(g_TN.t(), product.left, "gradient", record and not layer.gemms.grad_input.left.low)
    x = x_TK.t() if layer.keeps_activation else layer.quantised(x_TK.t(), product.right, "activation", False)
    return multiply(layer, known(product, layer.keeps_activation, layer.gemms.forward.left), g, x, None)


def known(product: Product, kept: bool, forward: Operand) -> Product:
    """The product with `same` replaced by what forward multiplied."""
    return Product(product.left, forward) if kept else product


def multiply(layer: Layer, product: Product, left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """left (R, C) · right (M, C)ᵀ + bias, in the compute format."""
    dtype = layer.dtype(product)
    a = told(left.to(dtype), product.left, layer.compute)
    b = told(right.to(dtype), product.right, layer.compute)
    added = None if bias is None else bias.to(layer.compute).to(dtype)
    return F.linear(a, b, added).to(layer.compute)
