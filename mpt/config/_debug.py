"""Rules about faults that are put in on purpose."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mpt.config.schema import RunConfig
from mpt.errors import Problem
from mpt.registry import did_you_mean

KINDS, WHERE = ("inf", "nan", "spike", "underflow"), ("backward", "forward")


def injections(cfg: RunConfig) -> Iterator[Problem]:
    """Kinds, places and steps that there are; the module is looked for once the model is built."""
    for i, fault in enumerate(cfg.debug.inject):
        key = f"debug.inject[{i}]"
        for name, word, known in (("kind", fault.kind, KINDS), ("where", fault.where, WHERE)):
            if word not in known:
                what = f"got `{word}`, want one of {', '.join(known)}"
                hint = did_you_mean(word, known)
                yield Problem(f"{key}.{name}", what, hint if hint.startswith("did") else "")
        for name, count in (("step", fault.step), ("steps", fault.steps)):
            if count < 1:
                yield Problem(f"{key}.{name}", f"got {count}, want a number ≥ 1", "steps are counted from 1")
        yield from _factor(key, fault.kind, fault.factor)


def _factor(key: str, kind: str, factor: float | None) -> Iterator[Problem]:
    if factor is not None and kind not in ("spike", "underflow"):
        yield Problem(f"{key}.factor", f"got {factor:g}, which kind={kind} has no use for", "leave it away")
    elif factor is not None and not (math.isfinite(factor) and factor > 0):
        yield Problem(f"{key}.factor", f"got {factor}, want a finite number > 0", "e.g. 1024")


DEBUG = (injections,)
