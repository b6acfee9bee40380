"""How much of a layer's product is left when its operands have fewer mantissa bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.formats.rounding import round_to
from mpt.formats.table import format_of
from mpt.telemetry.history import read

MANTISSAS = (7, 3, 2)
"""Of bfloat16, of float8_e4m3fn (and MXFP8), of float8_e5m2."""

_ELEMENTS = 1 << 14
"""Of an input, about: samples are taken whole, the first ones."""

_WIDE = {bits: format_of(f"e8m{bits}") for bits in MANTISSAS}
"""With float32's exponents: what a format's range loses is another question."""


class RoundedProducts:
    """Signal over noise of linear and convolutional layers when both operands are rounded, on a few samples.

    `keep` in the forward pass; `measure` outside of the policy's contexts, before the weights change.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(m): n for n, m in model.named_modules() if _product(m) is not None}
        self._kept: list[tuple[str, nn.Module, Tensor]] = []
        self._energies: dict[str, Tensor] = {}

    def keep(self, name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Keep a copy of the first samples of the input."""
        if id(module) in self._names and inputs and isinstance(inputs[0], Tensor):
            x = inputs[0].detach()
            rows = max(1, _ELEMENTS * len(x) // max(x.numel(), 1)) if x.dim() > 1 else len(x)
            self._kept.append((name, module, x[:rows].float().clone()))

    @torch.no_grad()
    def measure(self) -> None:
        """Energies of each product and of its errors stay on the device."""
        for name, module, x in self._kept:
            product = _product(module)
            assert product is not None, "only such modules were kept"
            weight = cast(Tensor, module.weight).float()
            exact = product(x, weight)
            errors = [product(round_to(x, row), round_to(weight, row)).sub_(exact) for row in _WIDE.values()]
            self._energies[name] = torch.stack([t.square().sum(dtype=torch.float64) for t in (exact, *errors)])
        self._kept = []

    def read(self) -> dict[str, dict[str, float | None]]:
        """By module and mantissa bits: decibels, None where it is zero or nothing was lost. Reads the device."""
        names, energies = list(self._energies), torch.stack([*self._energies.values()]) if self._energies else None
        if energies is None:
            return {}
        ratios = 10 * torch.log10(energies[:, :1] / energies[:, 1:])
        flat = iter(read(ratios))
        return {n: {str(b): _finite(next(flat)) for b in MANTISSAS} for n in names}


def _finite(value: float) -> float | None:
    return round(value, 3) if value - value == 0 else None


def _product(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The module's product without its bias, of an input and a weight; None for modules that have none."""
    if isinstance(module, nn.Linear):
        return F.linear
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return lambda x, weight: module._conv_forward(x, weight, None)
    return None
