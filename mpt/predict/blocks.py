"""Which parts of a model are its repeated blocks, each of which sharding gathers by itself, and what weights it has."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from mpt.predict.trace import Kept

_ROWS = (nn.ModuleList, nn.Sequential)


def blocks_of(model: nn.Module) -> tuple[str, ...]:
    """Names of the outermost modules in lists and rows that are neither and have modules with weights inside."""
    return tuple(_blocks("", model, in_a_row=False))


def _blocks(name: str, module: nn.Module, in_a_row: bool) -> Iterator[str]:
    row = type(module) in _ROWS
    inside = any(True for child in module.children() for _ in child.parameters())
    if in_a_row and not row and inside:
        yield name
        return
    for key, child in module.named_children():
        yield from _blocks(f"{name}.{key}" if name else key, child, in_a_row=row)


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
