"""Which loss scaling a run's gradients ask for, and why, in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from mpt.formats.table import NumberFormat
from mpt.record.numerics import Numerics
from mpt.report.advice.history import History, of_looks
from mpt.report.advice.presets import Constants, presets
from mpt.report.advice.replay import Outcome, replay
from mpt.report.advice.survival import LOST, Layer, layers, starved
from mpt.report.advice.words import share, some
from mpt.units import counted

GOOD = 1e-3
"""Share of steps and gradients together that may be lost for nothing: as many steps as one overflow in a thousand."""

BEARABLE = 0.05
"""Share above which no loss scale makes up for the format's range."""

FLOOR_LOST = 0.01
"""A scale at which more of the gradients are lost than this is below the floor."""

_INTERVALS = (2000, 1000, 500, 200, 100)
_ROOM_BITS = 4
"""Least growth that is left open: gradients shrink as a run goes on."""

_HEADROOM_BITS = 1
"""Between the initial scale and the smallest limit of the first steps: gradients that double do not overflow."""

_SEARCHED = range(-24, 33)
"""Powers of two for a static scale: float16's range around 1, up to Megatron's 2^32."""


@dataclass(frozen=True)
class Advice:
    """`outcomes`: every preset, a static scale of the best power of two, and what is recommended, replayed.

    `choice` None: no loss scaling will do, `sentence` says what will.
    """

    past: History
    outcomes: tuple[Outcome, ...]
    choice: Outcome | None
    sentence: str


def advise(past: History, found: Sequence[Layer] = ()) -> Advice:
    """Every strategy replayed, and one recommended: no scaling only where none of the layers found needs a scale."""
    known = presets()
    outcomes = [replay(name, constants, past) for name, constants in known.items()]
    best = best_static(past, found)
    tuned = _tuned(past, known["dynamic"], best, found)
    outcomes = [*outcomes, best, tuned]
    choice, sentence = _chosen(past, outcomes, best, tuned, found)
    return Advice(past, tuple(outcomes), choice, sentence)


def best_static(past: History, found: Sequence[Layer] = ()) -> Outcome:
    """The power of two that loses least; of equal ones those that starve fewest layers found, and of these that in
    the middle, which has most room on both sides."""
    static = presets()["static"]
    tried = [replay("static", {**static, "init_scale": 2.0**k}, past) for k in _SEARCHED]
    least = min(o.cost for o in tried)
    equal = [o for o in tried if o.cost <= least + GOOD / 10]
    lacking = [len(starved(found, o.last)) for o in equal]
    equal = [o for o, lacks in zip(equal, lacking, strict=True) if lacks == min(lacking)]
    return replace(equal[len(equal) // 2], name=f"static, 2^{_exponent(equal[len(equal) // 2].last)}")


def _tuned(past: History, dynamic: Constants, best: Outcome, found: Sequence[Layer]) -> Outcome:
    """Dynamic scaling from the best power of two, or what the first steps bear, with the interval that loses least."""
    start = past.limit[: max(len(past) // 10, 1)]
    bearable = start[np.isfinite(start)]
    init = _exponent(best.last)
    if len(bearable):
        init = min(max(math.floor(bearable.min()) - _HEADROOM_BITS, _SEARCHED[0]), init)
    floor = _layers_floor(past, found, min(_floor(past), init), init)
    base = {**dynamic, "init_scale": 2.0**init, "min_scale": 2.0**floor, "max_scale": 2.0 ** max(init + _ROOM_BITS, 24)}
    tried = [replay("dynamic, tuned", {**base, "growth_interval": n}, past) for n in _INTERVALS]
    return min(tried, key=lambda o: round(o.cost, 4))


def _floor(past: History) -> int:
    """The lowest power of two at which all but FLOOR_LOST of the gradients are kept, if every step bears it."""
    held = past.limit[np.isfinite(past.limit)]
    ceiling = math.floor(held.min()) if len(held) else 0
    for k in _SEARCHED:
        if np.mean([past.lost(seen, 2.0**k) for seen in past.looks] or [0.0]) <= FLOOR_LOST:
            return min(k, ceiling)
    return min(0, ceiling)


def _layers_floor(past: History, found: Sequence[Layer], floor: int, init: int) -> int:
    """The lowest power of two from `floor` on, if every step bears it, that starves no layer which `init` feeds."""
    if not found:
        return floor
    held = past.limit[np.isfinite(past.limit)]
    ceiling = min(init, math.floor(held.min())) if len(held) else init
    least = len(starved(found, 2.0**init))
    return next((k for k in range(floor, ceiling + 1) if len(starved(found, 2.0**k)) <= least), floor)


def _chosen(
    past: History, outcomes: Sequence[Outcome], best: Outcome, tuned: Outcome, found: Sequence[Layer]
) -> tuple[Outcome | None, str]:
    by_name = {o.name: o for o in outcomes}
    none, layered = by_name["none"], by_name["per_layer"]
    if none.cost <= GOOD:
        return _for_layers(f"without scaling {past.spec.name} {losses(none)}", none, tuned, found)
    if not past.looks or not math.isfinite(past.limit.max()):
        return None, "no step was finite: no loss scale can cure that"
    alone = f"without scaling {past.spec.name} {losses(none)}"
    if min(tuned.cost, best.cost) <= BEARABLE and tuned.cost <= best.cost + GOOD:
        init = _exponent(float(tuned.constants["init_scale"]))
        return tuned, f"{alone}; from 2^{init} on, dynamically, it {losses(tuned)}"
    if best.cost <= BEARABLE:
        return best, f"{alone}; at a scale that stays it {losses(best)}, dynamically it {losses(tuned)}"
    if layered.cost <= BEARABLE:
        return (
            layered,
            f"{alone}, and under one scale for all it {losses(best)}; a scale for each layer {losses(layered)}",
        )
    return None, f"{alone}, and at its best scale it still {losses(best)}: use bf16, which has the range of float32"


def _for_layers(alone: str, none: Outcome, tuned: Outcome, found: Sequence[Layer]) -> tuple[Outcome, str]:
    """What few gradients are lost over all may be many in one layer."""
    init = float(tuned.constants["init_scale"])
    before, after = starved(found, 1.0), starved(found, init)
    if len(after) >= len(before) or tuned.cost > none.cost + GOOD:
        more = f"; no scale gives {some(before, len(found))} the range they lack" if before else ""
        return none, f"{alone}: there is nothing to scale{more}"
    gain = f"over {LOST:.0%} of those of its weights or outputs in {some(before, len(found))}"
    then = f"{some(after, len(found))} still would" if after else "no layer does"
    return tuned, f"{alone}, but {gain}; from 2^{_exponent(init)} on, dynamically, {then}"


@lru_cache(maxsize=4)
def judged_scale(numerics: Numerics, computed: NumberFormat | None = None) -> float:
    """The loss scale under which float16 is judged: the run's last, else the best where 1 loses some gradients."""
    last = numerics.looks[-1].scale
    past = of_looks(numerics) if last == 1 else None
    if past is None:
        return last
    found = layers(numerics, computed)
    if replay("none", presets()["none"], past).cost <= GOOD and not starved(found, 1.0):
        return last
    return best_static(past, found).last


def losses(outcome: Outcome) -> str:
    """What a strategy would have lost, in words."""
    lost = (
        "nothing is known of its gradients"
        if outcome.lost is None
        else f"loses {share(outcome.lost)} of the weights' gradients"
    )
    return f"{lost} and skips {outcome.skipped - outcome.broken:,} of {counted(outcome.steps - outcome.broken, 'step')}"


def _exponent(scale: float) -> int:
    return round(math.log2(scale))
