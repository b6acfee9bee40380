"""numerics.jsonl read back: what the tensors of a run looked like at the steps that were looked at. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpt.stats.exponents import BINS, Exponents

ACTIVATIONS, WEIGHTS, GRADIENTS, OUTPUT_GRADIENTS = "activations", "weights", "gradients", "output_gradients"
ROLES = (ACTIVATIONS, WEIGHTS, GRADIENTS, OUTPUT_GRADIENTS)
SCALED = (GRADIENTS, OUTPUT_GRADIENTS)
"""Roles whose numbers are as the backward pass left them, times the step's `scale`."""

_BIAS = 127


@dataclass(frozen=True)
class Noise:
    """Squared norms of the unscaled gradient of `small` samples and of all `big` ones of a step."""

    small_sq: float
    big_sq: float
    small: int
    big: int


@dataclass(frozen=True)
class Look:
    """One step that was looked at. `tensors` by role and name; `sqnr_db` by module and mantissa bits.

    `scale` is what the numbers of SCALED roles are multiplied by.
    """

    step: int
    applied: bool
    scale: float
    tensors: Mapping[str, Mapping[str, Exponents]]
    noise: Noise | None = None
    sqnr_db: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def of(self, role: str) -> Mapping[str, Exponents]:
        return self.tensors.get(role, {})

    def scale_of(self, role: str) -> float:
        """What one has to divide the role's numbers by."""
        return self.scale if role in SCALED else 1.0


@dataclass(frozen=True, eq=False)
class Numerics:
    """All looks in the order of steps; `bad` lines could not be read."""

    looks: tuple[Look, ...] = ()
    bad: int = 0


def numerics_of(rows: Iterable[Mapping[str, Any]]) -> Numerics:
    """The looks in the rows of numerics.jsonl; rows of another shape, or out of order, are counted as bad."""
    looks: list[Look] = []
    bad = 0
    for row in rows:
        try:
            look = _look(row)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            bad += 1
            continue
        if looks and look.step <= looks[-1].step:
            bad += 1
            continue
        looks.append(look)
    return Numerics(tuple(looks), bad)


def module_of(role: str, name: str) -> str:
    """The module that a tensor belongs to: weights and their gradients are named as parameters are."""
    return (name.rpartition(".")[0] or name) if role in (WEIGHTS, GRADIENTS) else name


def _look(row: Mapping[str, Any]) -> Look:
    noise = row.get("noise")
    return Look(
        step=int(row["step"]),
        applied=bool(row["applied"]),
        scale=float(row["scale"]),
        tensors={role: {n: _exponents(s) for n, s in row[role].items()} for role in ROLES if row.get(role)},
        noise=Noise(**{k: noise[k] for k in ("small_sq", "big_sq", "small", "big")}) if noise else None,
        sqnr_db={
            module: {int(bits): float(db) for bits, db in values.items() if db is not None}
            for module, values in row.get("sqnr_db", {}).items()
        },
    )


def _exponents(stat: Mapping[str, Any]) -> Exponents:
    counts = np.zeros(BINS)
    held = stat.get("counts", ())
    if held:
        first = int(stat["low"]) + _BIAS
        if not 0 <= first <= BINS - len(held):
            raise ValueError("counts lie outside the exponents that there are")
        counts[first : first + len(held)] = held
    amax = stat["amax"]
    return Exponents(
        counts, stat["zero"], stat["nonfinite"], stat.get("size", stat["n"]), None if amax is None else float(amax)
    )
