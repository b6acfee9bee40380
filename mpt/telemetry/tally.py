"""Statistics of many tensors, made on their device and brought to the host with a few copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpt.formats.exponents import exponents, largest, sample

Stat = dict[str, Any]
"""One tensor's line in numerics.jsonl: see `_stat`."""


class Tally:
    """Exponents, zeros and largest magnitudes of the tensors of one step, by role and name.

    `most` bounds the elements whose exponents are counted (None: all); the largest magnitude is of all of them.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._keys: list[tuple[str, str]] = []
        self._sizes: list[tuple[int, int]] = []
        self._counts: list[Tensor] = []
        self._largest: list[Tensor] = []

    @torch.no_grad()
    def add(self, role: str, name: str, x: Tensor) -> None:
        """Count x, floating; reads nothing on the host."""
        part = x.detach() if self._most is None else sample(x, self._most)
        self._keys.append((role, name))
        self._sizes.append((part.numel(), x.numel()))
        self._counts.append(exponents(part))
        self._largest.append(largest(x))

    def read(self) -> dict[str, dict[str, Stat]]:
        """By role and name, what was counted; tensors of one role and name are one. Reads the device."""
        if not self._keys:
            return {}
        counts = torch.stack(self._counts).cpu().numpy()
        amax: list[float] = torch.stack(self._largest).tolist()
        found: dict[str, dict[str, Stat]] = {}
        for i in self._groups():
            role, name = self._keys[i[0]]
            counted, size = (sum(self._sizes[j][k] for j in i) for k in (0, 1))
            worst = max((amax[j] for j in i), key=lambda a: math.inf if math.isnan(a) else a)
            found.setdefault(role, {})[name] = _stat(counts[i].sum(axis=0), counted, size, worst)
        return found

    def _groups(self) -> list[list[int]]:
        """Indices of each role and name, in the order of their first tensors."""
        groups: dict[tuple[str, str], list[int]] = {}
        for i, key in enumerate(self._keys):
            groups.setdefault(key, []).append(i)
        return list(groups.values())


def _stat(counts: np.ndarray[Any, Any], counted: int, size: int, amax: float) -> Stat:
    """`n` counted of `size`, `low` the exponent of the first of `counts`. What lies below 2^-126 counts as zero: to
    tell it from zero would take another pass, and hardly any device computes with it."""
    some = counts.copy()
    some[[0, -1]] = 0
    held: Sequence[int] = np.flatnonzero(some).tolist()
    stat: Stat = {
        "n": counted, "zero": int(counts[0]), "nonfinite": int(counts[-1]),
        "amax": amax if math.isfinite(amax) else None,
    }  # fmt: skip
    if counted != size:
        stat["size"] = size
    if held:
        stat |= {"low": held[0] - 127, "counts": some[held[0] : held[-1] + 1].tolist()}
    return stat
