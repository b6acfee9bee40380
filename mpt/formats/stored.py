"""How weights and moments are stored beside float32 arithmetic: rounded to bfloat16, or in two halves of 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_LOW = 16
_HALF = 1 << (_LOW - 1)


def split_float32(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as its nearest bfloat16 and the 16 bits by which its code lies beside that; together they are x exactly.

    Ties go away from zero: to even they could not, since one high half would need 2^16 + 1 low ones.
    Shapes: float32 of any shape to bfloat16 and int16 of the same.
    """
    code = x.contiguous().view(torch.int32)
    high = (code + _HALF) >> _LOW
    low = code - (high << _LOW)
    return high.to(torch.int16).view(torch.bfloat16), low.to(torch.int16)


def join_float32(high: Tensor, low: Tensor) -> Tensor:
    """The float32 numbers whose halves they are."""
    code = high.view(torch.int16).to(torch.int32) << _LOW
    return code.add_(low).view(torch.float32)


def stochastic_bfloat16(x: Tensor) -> Tensor:
    """float32 x rounded up or down in size with the probability of its distance: by 16 bits of torch's generator.

    Of numbers between two bfloat16 ones the mean is exact. inf and NaN stay.
    """
    flat = x.reshape(-1)
    words = torch.randint(-(2**63), 2**63 - 1, (-(-flat.numel() // 4),), dtype=torch.int64, device=x.device)
    bits = words.view(torch.int16)[: flat.numel()].to(torch.int32).bitwise_and_((1 << _LOW) - 1)
    code = bits.add_(flat.view(torch.int32)).bitwise_and_(-(1 << _LOW))
    rounded = torch.where(flat.isnan(), flat, code.view(torch.float32))
    return rounded.to(torch.bfloat16).view(x.shape)


class Stored(Protocol):
    """Numbers in memory that arithmetic sees as float32. `write` of what `read` gave changes nothing."""

    def read(self) -> Tensor: ...

    def write(self, value: Tensor, found: Tensor) -> None: ...

    def tensors(self) -> list[Tensor]: ...


class Plain:
    """A float32 tensor that is updated in place, or a half one to whose format results are rounded to nearest."""

    def __init__(self, held: Tensor) -> None:
        self._held = held

    def read(self) -> Tensor:
        return self._held.float()

    def write(self, value: Tensor, found: Tensor) -> None:
        if value is not self._held:  # float32 was updated in place
            self._held.copy_(value)

    def tensors(self) -> list[Tensor]:
        return [self._held]


class Dithered:
    """A bfloat16 tensor to which results are rounded stochastically."""

    def __init__(self, held: Tensor) -> None:
        self._held = held

    def read(self) -> Tensor:
        return self._held.float()

    def write(self, value: Tensor, found: Tensor) -> None:
        self._held.copy_(stochastic_bfloat16(value))

    def tensors(self) -> list[Tensor]:
        return [self._held]


class Halves:
    """float32 in two halves: the high one is the weight that the model multiplies with."""

    def __init__(self, high: Tensor, low: Tensor) -> None:
        self._high, self._low = high, low

    def read(self) -> Tensor:
        return join_float32(self._high, self._low)

    def write(self, value: Tensor, found: Tensor) -> None:
        high, low = split_float32(value)
        self._high.copy_(high)
        self._low.copy_(low)

    def tensors(self) -> list[Tensor]:
        return [self._high, self._low]


@dataclass(frozen=True)
class Storage:
    """How the tensors that an optimizer updates are stored: the low half of each that is split, in their order, and
    whether results in bfloat16 are rounded stochastically."""

    lows: Sequence[Tensor | None]
    stochastic: bool = False

    def of(self, index: int, view: Tensor, start: int) -> Stored:
        """The storage of `view`, which begins at number `start` of the tensor `index`, both in order of memory."""
        low = self.lows[index]
        if low is not None:
            return Halves(view, low[start : start + view.numel()])
        return Dithered(view) if self.stochastic and view.dtype == torch.bfloat16 else Plain(view)
