"""What another loss scaling would have done in a run, without training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mpt.report.advice.history import History
from mpt.report.advice.presets import Constants
from mpt.stats.exponents import overflow_log2
from mpt.stats.scales import Fixed, PerLayer, rule_of

_LARGEST_LOG2, _SMALLEST_LOG2 = 128.0, -1000.0
_NONE = np.zeros(0)


@dataclass(frozen=True)
class Outcome:
    """A strategy over a run's steps. `lost`: mean share of gradients that are 0 or infinite in the format, at the looks
    of steps that were not skipped; None where all were. `ended`: the step at which the strategy gives up. `broken`:
    steps that every scale skips, since the forward pass was non-finite; they speak for none and against none."""

    name: str
    constants: Constants
    skipped: int
    steps: int
    lost: float | None
    low: float
    high: float
    last: float
    ended: int | None = None
    broken: int = 0

    @property
    def skipped_share(self) -> float:
        """Of the steps that a scale could have kept."""
        curable = self.steps - self.broken
        return (self.skipped - self.broken) / curable if curable else 0.0

    @property
    def cost(self) -> float:
        """Skipped steps and lost gradients, as one share of what was there to be learned from."""
        kept = 0.0 if self.lost is None else 1 - self.lost
        return 1 - (1 - self.skipped_share) * kept + (1.0 if self.ended is not None else 0.0)


def replay(name: str, constants: Constants, past: History) -> Outcome:
    """The strategy meets the gradients that the run had; that other updates would have led elsewhere is left out."""
    rule = rule_of(constants)
    if isinstance(rule, Fixed):
        return _fixed(name, constants, past, rule.scale)
    limits, largest = past.limit.tolist(), [_power(v) for v in past.largest.tolist()]
    scales, found, powers = [], [], []
    top = overflow_log2(past.spec)
    for i, limit in enumerate(limits):
        scales.append(rule.scale)
        over = math.log2(rule.scale) > limit
        inside = _NONE
        if isinstance(rule, PerLayer):
            powers.append(rule.exponents)
            inside = past.layers_at(i) + math.log2(rule.scale) + (rule.exponents if i else 0)
            over = over or bool((inside >= top).any())
            inside = np.where(inside >= top, np.inf, np.exp2(inside))
        found.append(over)
        rule.update(over, math.inf if over else largest[i], inside)
        if rule.exhausted:
            break
    lost = [
        past.lost(seen, scales[seen.index], powers[seen.index] if powers else None)
        for seen in past.looks
        if seen.index < len(found) and not found[seen.index]
    ]
    return Outcome(
        name, constants, sum(found), len(found), float(np.mean(lost)) if lost else None,
        min(scales), max(scales), rule.scale, len(found) if rule.exhausted else None,
        past.broken(len(found)),
    )  # fmt: skip


def _fixed(name: str, constants: Constants, past: History, scale: float) -> Outcome:
    """One scale for all steps, without a loop over them."""
    found = math.log2(scale) > past.limit
    lost = [past.lost(seen, scale) for seen in past.looks if not found[seen.index]]
    mean = float(np.mean(lost)) if lost else None
    return Outcome(name, constants, int(found.sum()), len(found), mean, scale, scale, scale, broken=past.broken())


def _power(log2: float) -> float:
    """2^log2 as a number of float64."""
    return 2.0 ** min(log2, _LARGEST_LOG2) if log2 > _SMALLEST_LOG2 else 0.0
