"""A convolution whose three products have operands of their own formats.

B images, C inputs, O outputs, S pixels, k taps. Blocks lie along what a product sums over: channels in forward and
grad_input, pixels in grad_weight; scales by row are shared by an image or a channel, so that they can leave the sum.
The Hadamard transform mixes 16 images, pixel by pixel, so that taps still meet their pixels; blocks are those 16 then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mpt.formats.hadamard import rotate_first
from mpt.formats.operand import HADAMARD, HIGH, Operand, Product
from mpt.precision.low.linear import known
from mpt.precision.low.operands import Layer, told, unseen

_aten = torch.ops.aten
_INPUT, _WEIGHT = (True, False, False), (False, True, False)
"""Which of the gradients of input, weight and bias is asked for."""


@dataclass(frozen=True)
class Window:
    """Where the taps of a convolution lie."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


class LowConv(torch.autograd.Function):
    """As LowLinear, over pixels."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer, window: Window, record: bool
    ) -> Tensor:
        w = weight.to(layer.compute)
        product = layer.gemms.forward
        xq = over_channels(x, product.left, layer, "activation", record)
        wq = _weight_over_inputs(w, product.right, layer, record)
        ctx.save_for_backward(xq if layer.keeps_activation else x, wq if layer.keeps_weight else w)
        ctx.layer, ctx.window, ctx.record, ctx.has_bias = layer, window, record, bias is not None
        ctx.weight_dtype = weight.dtype
        dtype = _dtype(layer, product, x.device)
        a, b = told(xq.to(dtype), product.left, layer.compute), told(wq.to(dtype), product.right, layer.compute)
        added = None if bias is None else bias.to(layer.compute).to(dtype)
        nothing = (0,) * len(window.stride)
        out: Tensor = _aten.convolution.default(
            a, b, added, window.stride, window.padding, window.dilation, False, nothing, 1
        )
        return out.to(layer.compute)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        layer: Layer = ctx.layer
        x, w = ctx.saved_tensors
        g = grad.to(layer.compute)
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = _grad_input(layer, ctx.window, g, x, w, ctx.record)
        if ctx.needs_input_grad[1]:
            record = ctx.record and not layer.gemms.grad_input.left.low
            grad_w = _grad_weight(layer, ctx.window, g, x, w, record).to(ctx.weight_dtype)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_b = g.transpose(0, 1).flatten(1).sum(1, dtype=torch.float32)
        return grad_x, grad_w, grad_b, None, None, None


def _dtype(layer: Layer, product: Product, device: torch.device) -> torch.dtype:
    """In which tensors operands are multiplied: float32 where torch would add up images in bfloat16."""
    dtype = layer.dtype(product)
    return torch.float32 if dtype == torch.bfloat16 and device.type == "cpu" and not sums_in_float32() else dtype


@cache
def sums_in_float32() -> bool:
    """Whether bfloat16 convolutions are oneDNN's on this CPU; torch's own add to a bfloat16 gradient image by image."""
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(there and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def over_channels(x: Tensor, op: Operand, layer: Layer, role: str, record: bool) -> Tensor:
    """x (B, C, S…) quantised along its channels; by row: each image on its own."""
    if op.format == HIGH:
        return x
    if op.scale == "row":
        return layer.quantised(x.flatten(1), op, role, record).view(x.shape)
    last = x.movedim(1, -1)
    rows = last.reshape(-1, x.shape[1])
    return layer.quantised(rows, op, role, record).view(last.shape).movedim(-1, 1)


def over_pixels(x: Tensor, op: Operand, layer: Layer, role: str, record: bool) -> Tensor:
    """x (B, C, S…) quantised along its pixels, those of one channel in the order of images."""
    if op.format == HIGH:
        return x
    last = x.movedim(1, -1)
    rows = last.reshape(-1, x.shape[1]).t()
    return layer.quantised(rows, op, role, record).t().reshape(last.shape).movedim(-1, 1)


def over_images(x: Tensor, op: Operand, layer: Layer, role: str) -> Tensor:
    """x (B, C, S…) rotated and quantised along its images, in groups of 16: the last one is filled up with zeros."""
    if op.format == HIGH:
        return x
    last = x.movedim(1, -1)
    missing = -len(x) % HADAMARD
    full = torch.cat([last, last.new_zeros(missing, *last.shape[1:])]) if missing else last
    with unseen():
        groups = rotate_first(full).view(-1, HADAMARD, last[0].numel())
    rows = layer.quantised(groups.transpose(1, 2), replace(op, hadamard=False), role, False).transpose(1, 2)
    return rows.reshape(full.shape).movedim(-1, 1)


def _weight_over_inputs(w: Tensor, op: Operand, layer: Layer, record: bool) -> Tensor:
    if op.format == HIGH:
        return w
    last = w.movedim(1, -1)
    return layer.quantised(last.flatten(1), op, "weight", record).view(last.shape).movedim(-1, 1)


def _weight_over_outputs(w: Tensor, op: Operand, layer: Layer) -> Tensor:
    return _weight_over_inputs(w.transpose(0, 1), op, layer, False).transpose(0, 1)


def _grad_input(layer: Layer, window: Window, g: Tensor, x: Tensor, w: Tensor, record: bool) -> Tensor:
    product = known(layer.gemms.grad_input, layer.keeps_weight, layer.gemms.forward.right)
    gq = over_channels(g, product.left, layer, "gradient", record)
    wq = w if layer.keeps_weight else _weight_over_outputs(w, product.right, layer)
    return _backward(layer, product, window, gq, x, wq, _INPUT)


def _grad_weight(layer: Layer, window: Window, g: Tensor, x: Tensor, w: Tensor, record: bool) -> Tensor:
    product = known(layer.gemms.grad_weight, layer.keeps_activation, layer.gemms.forward.left)
    if product.left.hadamard:
        gq = over_images(g, product.left, layer, "gradient")
        return _backward(layer, product, window, gq, over_images(x, product.right, layer, "activation"), w, _WEIGHT)
    gq = over_pixels(g, product.left, layer, "gradient", record)
    xq = x if layer.keeps_activation else over_pixels(x, product.right, layer, "activation", False)
    return _backward(layer, product, window, gq, xq, w, _WEIGHT)


def _backward(
    layer: Layer, product: Product, window: Window, g: Tensor, x: Tensor, w: Tensor, wanted: tuple[bool, bool, bool]
) -> Tensor:
    """One of convolution's two backward products; the tensor that takes no part in it only lends its shape."""
    dtype = _dtype(layer, product, x.device)
    a = told(g.to(dtype), product.left, layer.compute)
    x, w = x.to(dtype), w.to(dtype)
    told(w if wanted[0] else x, product.right, layer.compute)
    nothing = (0,) * len(window.stride)
    grads = _aten.convolution_backward.default(
        a, x, w, None, window.stride, window.padding, window.dilation, False, nothing, 1, wanted
    )
    grad: Tensor = grads[0] if wanted[0] else grads[1]
    return grad.to(layer.compute)
