"""What weights a model has."""

from __future__ import annotations

from torch import nn

from mpt.predict.trace import Kept


def parameters_of(model: nn.Module) -> tuple[Kept, ...]:
    """In the order of `model.parameters()`, each once."""
    seen: set[int] = set()
    found = []
    for name, module in model.named_modules():
        for p in module.parameters(recurse=False):
            if id(p) not in seen:
                seen.add(id(p))
                found.append(Kept(tuple(p.shape), p.element_size(), name, p.requires_grad))
    return tuple(found)
