"""How a model's weights are stored: float32 as the model is given, then rounded as the policy says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from mpt.errors import PrecisionError, Problem
from mpt.formats.rounding import storage_dtype
from mpt.formats.table import format_of
from mpt.precision.roles import kept_parameters

if TYPE_CHECKING:
    from mpt.config.schema import PrecisionConfig

_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def trained(model: nn.Module) -> tuple[list[str], list[Parameter]]:
    """Names and parameters that take gradients; a tied one appears once, under its first name."""
    pairs = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [n for n, _ in pairs], [p for _, p in pairs]


def in_float32(model: nn.Module) -> None:
    """Parameters, and buffers of 16 bits, become float32, whatever the model's own code made of them."""
    for p in model.parameters():
        if p.dtype in _REAL:
            p.data = p.data.float()
    for b in model.buffers():
        if b.dtype in (torch.float16, torch.bfloat16):
            b.data = b.data.float()


def store(model: nn.Module, cfg: PrecisionConfig, kept: set[str]) -> dict[str, Tensor]:
    """Round what is stored in half in place; the float32 values that it had, by name."""
    dtype = storage_dtype(cfg.param)
    if dtype == torch.float32:
        return {}
    stay = kept_parameters(model, kept)
    full = {}
    for name, p in model.named_parameters():
        if id(p) not in stay and p.dtype == torch.float32:
            full[name] = p.data
            p.data = p.data.to(dtype)
    _check_range(model, full, cfg.param)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants the weights, which are new tensors now, in one piece
    return full


def _check_range(model: nn.Module, full: Mapping[str, Tensor], param: str) -> None:
    """Raises: PrecisionError for weights that were finite and are not in their stored format."""
    stored = dict(model.named_parameters())
    lost = {name: (~stored[name].isfinite() & value.isfinite()).sum() for name, value in full.items()}
    if lost and bool(torch.stack(list(lost.values())).any()):
        names = [name for name, count in lost.items() if count]
        what = f"`{param}` holds numbers to {format_of(param).max:.6g}, and {', '.join(names[:3])} have larger ones"
        raise PrecisionError(Problem("precision.param", what, "keep them float32 by precision.layers, or use bfloat16"))
