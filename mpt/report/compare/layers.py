"""In which layers two runs part first, where the tensors of both were looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpt.record.numerics import ROLES, Numerics, module_of
from mpt.report.advice.survival import unscaled
from mpt.stats.exponents import Exponents, merged

LEAST_BITS = 0.05
"""A smaller difference of mean exponents (3.5 % in size) is none, however quiet a layer is."""

_BAND_SDS = 2.0

Course = Mapping[tuple[str, str], Mapping[int, float]]
"""By role and module, the mean exponent at each step that was looked at."""


@dataclass(frozen=True)
class LayerParting:
    """From `step` on, and to the end, a layer's mean exponent is `bits` away from the baseline's there, outside of
    twice the spread of either from look to look."""

    role: str
    module: str
    step: int
    bits: float


def layers_apart(pairs: Sequence[tuple[Numerics, Numerics]]) -> tuple[LayerParting, ...] | None:
    """Layers that part, the first ones first, over pairs (candidate, baseline) of one seed; None where no pair has
    looks at two steps in common."""
    courses = [(_course(a), _course(b)) for a, b in pairs]
    found, known = [], False
    for key in dict.fromkeys(key for here, there in courses for key in here if key in there):
        tables = [_table(here[key], there[key]) for here, there in courses if key in here and key in there]
        tables = [t for t in tables if len(t[0]) > 1]
        known |= bool(tables)
        if tables:
            apart = _apart(*key, tables)
            found += [apart] if apart else []
    return tuple(sorted(found, key=lambda p: (p.step, -abs(p.bits)))) if known else None


def _course(numerics: Numerics) -> Course:
    found: dict[tuple[str, str], dict[int, float]] = {}
    for look in numerics.looks:
        for role in ROLES:
            parts: dict[str, list[Exponents]] = {}
            for name, x in look.of(role).items():
                parts.setdefault(module_of(role, name), []).append(unscaled(x, look.scale_of(role)))
            for module, xs in parts.items():
                mean = merged(xs).mean
                if mean is not None:
                    found.setdefault((role, module), {})[look.step] = mean
    return found


def _table(here: Mapping[int, float], there: Mapping[int, float]) -> tuple[list[int], list[float], list[float]]:
    steps = sorted(here.keys() & there.keys())
    return steps, [here[s] for s in steps], [there[s] for s in steps]


def _apart(role: str, module: str, tables: Sequence[tuple[list[int], list[float], list[float]]]) -> LayerParting | None:
    steps = min((t[0] for t in tables), key=len)
    n = len(steps)
    here, there = (np.array([t[i][:n] for t in tables]) for i in (1, 2))
    jumps = np.concatenate([np.diff(here, axis=1), np.diff(there, axis=1)])
    spread = float(np.median(np.abs(jumps))) / 0.6745 / np.sqrt(2)  # of one look, as a normal deviation
    band = max(LEAST_BITS, _BAND_SDS * spread * np.sqrt(2 / len(tables)))
    difference = (here - there).mean(axis=0)
    inside = np.flatnonzero(np.abs(difference) <= band)
    first = int(inside[-1]) + 1 if len(inside) else 0
    if first >= n:
        return None
    return LayerParting(role, module, steps[first], float(difference[first:].mean()))
