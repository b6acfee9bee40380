"""Tensors in nested containers: those that go into and come out of modules and ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_CASTABLE = (torch.float32, torch.float16, torch.bfloat16)


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in value, however nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from tensors(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors(v)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Value with its half and float32 tensors, however nested, in that dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype in _CASTABLE else value
    if isinstance(value, dict):
        return {k: cast(v, dtype) for k, v in value.items()}
    if isinstance(value, tuple) and type(value) is not tuple:
        return type(value)(*(cast(v, dtype) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(cast(v, dtype) for v in value)
    return value
