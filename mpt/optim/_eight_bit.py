"""Moments in 8 bits, as torchao stores them: a code of a dynamic map for each number, a scale for each 256."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from mpt.formats.quietly import quietly

BLOCK = 256
_LEAST = 4096
"""Source: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"; torchao.optim: smaller tensors, or such
as are no multiple of a block, keep float32."""


def fits(param: Tensor) -> bool:
    """Whether a tensor's moments are stored in 8 bits."""
    return param.numel() >= _LEAST and param.numel() % BLOCK == 0


class EightBit:
    """Numbers as codes of `numbers`, and scales; bit-equal to torchao's OptimState8bit."""

    def __init__(self, count: int, numbers: Tensor) -> None:
        self._map = numbers
        self._codes = torch.zeros(count, dtype=torch.uint8, device=numbers.device)
        self._scales = torch.zeros(count // BLOCK, device=numbers.device)

    def read(self) -> Tensor:
        numbers: Tensor = _torchao().dequant_with_qmap(self._codes, self._map, self._scales)
        return numbers

    def write(self, value: Tensor, found: Tensor) -> None:
        """Codes of the new numbers, nothing where `found` is 1: rounding twice is not always rounding once."""
        scaled, scales = _torchao().scale_tensor(value, BLOCK)
        codes = _torchao().quantize_8bit_with_qmap(scaled, self._map)
        skip = found.bool()
        torch.where(skip, self._codes, codes, out=self._codes)
        torch.where(skip, self._scales, scales, out=self._scales)

    def tensors(self) -> list[Tensor]:
        return [self._codes, self._scales]


def coded(signed: bool, device: torch.device) -> Tensor:
    """The numbers that codes stand for, as a tensor."""
    return torch.tensor(_map(signed), device=device)


@cache
def _map(signed: bool) -> tuple[float, ...]:
    """Real numbers also where a plan traces with tensors that hold nothing."""
    with _disable_current_modes():
        return tuple(_torchao().create_dynamic_map(signed=signed))


@cache
def _torchao() -> Any:
    with quietly():
        from torchao.optim import quant_utils
    return quant_utils
