"""Which modules and parameters a policy keeps in float32 whatever their neighbours are stored in."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
    nn.CrossMapLRN2d,
)

_KERNELS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Norms whose statistics are float32 in any format."""

_MULTIPLY = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


def multiplies(module: nn.Module) -> bool:
    """Whether it is one of torch's layers that multiply by weights."""
    return isinstance(module, _MULTIPLY)


def reads_children(module: nn.Module) -> bool:
    """Whether its forward reads its children's weights and never calls them."""
    return type(module).forward is nn.MultiheadAttention.forward


def running_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules whose forward may run, in the order of `named_modules`."""
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if not (inside and name.startswith(inside)):
            yield name, module
        if reads_children(module):
            inside = (*inside, f"{name}.")


def own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters that a module's own forward uses."""
    return module.parameters(recurse=reads_children(module))


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: torch's own, or one named so whose own parameters are vectors at most."""
    if isinstance(module, _NORMS):
        return True
    if "norm" not in type(module).__name__.lower():
        return False
    return not any(True for _ in module.children()) and all(p.dim() <= 1 for p in module.parameters(recurse=False))


def computes_norm_itself(module: nn.Module) -> bool:
    """Whether its norm is ops of its own, which overflow in half (a square past 65504), and none of torch's kernels."""
    return is_norm(module) and not isinstance(module, _KERNELS)


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
            ids.update(id(p) for p in own_parameters(module))
    return ids
