"""What a number format would do to stored weights: which would overflow, which would become zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mpt.formats.measure import measure
from mpt.formats.operand import Operand
from mpt.formats.quantise import quantise
from mpt.formats.table import NumberFormat


@dataclass(frozen=True)
class Target:
    """A format that a policy gives weights: as they are stored or multiplied, or as an operand with its scale.

    `only` names the tensors that get it; None: all.
    """

    role: str
    spec: NumberFormat | Operand
    only: frozenset[str] | None = None

    @property
    def label(self) -> str:
        name = self.spec.label if isinstance(self.spec, Operand) else self.spec.name
        return f"{name} ({self.role})"


@dataclass(frozen=True)
class Finding:
    """A tensor in a target. `overflow` and `underflow` are shares of its finite numbers that are not zero.

    `nonfinite` counts numbers that are broken already; `largest` and `smallest` are magnitudes.
    """

    tensor: str
    target: str
    numbers: int
    overflow: float
    underflow: float
    nonfinite: int
    largest: float
    smallest: float

    @property
    def bad(self) -> bool:
        return self.overflow > 0 or self.underflow > 0 or self.nonfinite > 0


def lint(weights: Mapping[str, Tensor], targets: list[Target]) -> Iterator[Finding]:
    """One finding for each floating tensor and target; an operand's scale takes only tensors of two axes or more."""
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        for target in targets:
            if isinstance(target.spec, Operand) and tensor.dim() < 2:
                continue
            if target.only is not None and name not in target.only:
                continue
            yield _of(name, tensor.detach().float(), target)


def _of(name: str, x: Tensor, target: Target) -> Finding:
    sizes = x[x.isfinite() & (x != 0)].abs()
    over, under = _scaled(x, target.spec) if isinstance(target.spec, Operand) else _plain(x, target.spec)
    ends = (float(sizes.max()), float(sizes.min())) if sizes.numel() else (0.0, 0.0)
    return Finding(name, target.label, x.numel(), over, under, int((~x.isfinite()).sum()), *ends)


def _plain(x: Tensor, spec: NumberFormat) -> tuple[float, float]:
    told = measure(x, spec)
    return told.overflow, told.underflow


@torch.no_grad()
def _scaled(x: Tensor, op: Operand) -> tuple[float, float]:
    """A scale fits the largest number, so that nothing overflows; what is far smaller than it becomes zero."""
    sound = torch.where(x.isfinite(), x, 0.0)
    rows = quantise(sound.flatten(1), op).view(x.shape)
    there = sound != 0
    count = max(int(there.sum()), 1)
    return 0.0, int((there & (rows == 0)).sum()) / count
