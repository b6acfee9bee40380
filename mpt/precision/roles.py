"""Which modules and parameters a policy keeps in float32 whatever their neighbours are stored in."""

from __future__ import annotations

import torch
from torch import nn

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
    nn.CrossMapLRN2d,
)


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: torch's own, or one named so whose own parameters are vectors at most."""
    if isinstance(module, _NORMS):
        return True
    if "norm" not in type(module).__name__.lower():
        return False
    return not any(True for _ in module.children()) and all(p.dim() <= 1 for p in module.parameters(recurse=False))


def is_batch_norm(module: nn.Module) -> bool:
    """Whether it is one of torch's norms that follow their input's format under autocast, with float32 statistics."""
    return isinstance(module, nn.modules.batchnorm._NormBase)


def kept_parameters(model: nn.Module, kept: set[str]) -> set[int]:
    """Ids of parameters that stay float32: those of norms and of modules in `kept` (with all inside them)."""
    ids: set[int] = set()
    for name, module in model.named_modules():
        if name in kept:
            ids.update(id(p) for p in module.parameters())
        elif is_norm(module):
            ids.update(id(p) for p in module.parameters(recurse=False))
    return ids


def floating(p: torch.Tensor) -> bool:
    return p.is_floating_point() and p.dtype != torch.float64
