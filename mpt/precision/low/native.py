"""torchao's kernels behind the same layers: float8, MXFP8 and NVFP4 linears on GPUs that have them.

torchao's modules would hold weights of their own name and class; what they call is called here instead, on weights in
the compute format, so that state dicts, masters and float32 evaluation know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.formats.hadamard import hadamard_matrix
from mpt.formats.operand import Gemms, Operand
from mpt.formats.quietly import quietly
from mpt.precision.low.recipes import Recipe

Product = Callable[[Tensor, Tensor], Tensor]
"""x (T, K) and weight (N, K), both in the compute format, to (T, N), with gradients."""


def native_linear(
    module: nn.Linear, gemms: Gemms, recipe: Recipe, compute: torch.dtype, *, emulate: bool = False
) -> Callable[[Tensor], Tensor]:
    """A forward of that linear whose three products are torchao's; `emulate` has it multiply without the hardware.

    The bias is added after the sum was rounded, as torchao does it. Zeros that fill up tokens change no product.
    """
    with quietly():
        make = {"float8": _float8, "mxfp8": _mxfp8, "nvfp4": _nvfp4}[recipe.kind]
        product = make(gemms, emulate)

    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        missing = -len(rows) % recipe.tokens
        full = F.pad(rows, (0, 0, 0, missing)) if missing else rows
        out = product(full, module.weight.to(compute))[: len(rows)]
        out = out.view(*x.shape[:-1], -1)
        return out if module.bias is None else out + module.bias.to(compute)

    return forward


def native_label(x: Tensor) -> str:
    """The format and scale of torchao's tensors and of operands of scaled_mm; empty for others."""
    if type(x).__module__.startswith("torchao."):
        return _label_of_wrapper(x)
    return "e2m1/nv" if x.dtype == torch.float4_e2m1fn_x2 else ""


def _label_of_wrapper(x: Any) -> str:
    kind = type(x).__name__
    if kind == "Float8TrainingTensor":
        return f"{_short(x._data.dtype)}/{'tensor' if x._scale.numel() == 1 else 'row'}"
    return f"{_short(x.elem_dtype)}/mx" if kind == "MXTensor" else ""


def _short(dtype: torch.dtype) -> str:
    return {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}.get(dtype, str(dtype))


def _float8(gemms: Gemms, emulate: bool) -> Product:
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.config import Float8GemmConfig
    from torchao.float8.float8_linear import matmul_with_hp_or_float8_args
    from torchao.float8.float8_training_tensor import LinearMMConfig, ScaledMMConfig

    exact = Float8GemmConfig(use_fast_accum=False)
    config = Float8LinearConfig(
        cast_config_input=_cast(gemms.forward.left, gemms.grad_weight.right),
        cast_config_weight=_cast(gemms.forward.right, gemms.grad_input.right),
        cast_config_grad_output=_cast(gemms.grad_input.left, gemms.grad_weight.left),
        cast_config_input_for_grad_weight=_cast(gemms.grad_weight.right, gemms.forward.left),
        cast_config_weight_for_grad_input=_cast(gemms.grad_input.right, gemms.forward.right),
        cast_config_grad_output_for_grad_weight=_cast(gemms.grad_weight.left, gemms.grad_input.left),
        gemm_config_output=exact,
        emulate=emulate,
        round_scales_to_power_of_2=gemms.forward.left.pow2,
    )
    each = ScaledMMConfig(emulate, False, False, False)
    products = LinearMMConfig(each, each, each)

    def product(x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = matmul_with_hp_or_float8_args.apply(x, weight.t(), products, config)
        return out

    return product


def _cast(op: Operand, other: Operand) -> Any:
    """torchao's words for one use of an operand; one that stays high is told the format of its `other` use."""
    from torchao.float8.config import CastConfig, ScalingGranularity, ScalingType

    name = (op if op.low else other).format
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}.get(name)
    if not op.low:
        return CastConfig(scaling_type=ScalingType.DISABLED, target_dtype=dtype)
    by = ScalingGranularity.AXISWISE if op.scale == "row" else ScalingGranularity.TENSORWISE
    return CastConfig(scaling_granularity=by, target_dtype=dtype)


def _mxfp8(gemms: Gemms, emulate: bool) -> Product:
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common import KernelPreference

    rule = ScaleCalculationMode(gemms.forward.left.rule)
    kernels = KernelPreference.EMULATED if emulate else KernelPreference.AUTO
    high = not gemms.grad_weight.low

    def product(x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = _to_mxfp8_then_scaled_mm(x.contiguous(), weight.contiguous(), kernels, rule, high)
        return out

    return product


def _nvfp4(gemms: Gemms, emulate: bool) -> Product:
    """torchao draws the rounding of gradients from torch's generator and a seed, which is the same for all layers."""
    from torchao.prototype.moe_training.nvfp4_training.nvfp4_linear import nvfp4_linear

    assert not emulate, "torchao's NVFP4 is written in Triton: it has no emulation"
    signs = tuple(int(s) for s in hadamard_matrix(torch.device("cpu"))[:, 0].sign().tolist())
    seeds: dict[torch.device, Tensor] = {}

    def product(x: Tensor, weight: Tensor) -> Tensor:
        seed = seeds.setdefault(x.device, torch.zeros(1, dtype=torch.int64, device=x.device))
        out: Tensor = nvfp4_linear(x, weight, None, sign_vector=signs, sr_seed=seed)
        return out

    return product
