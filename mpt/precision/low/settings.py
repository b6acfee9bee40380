"""What a policy's YAML says of low-bit layers, read from `precision.options`. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpt.errors import PrecisionError, Problem
from mpt.formats.operand import Gemms, gemms_of
from mpt.registry import did_you_mean

if TYPE_CHECKING:
    from mpt.config.schema import PrecisionConfig

KINDS = ("linear", "conv")
_HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class LowBit:
    """A policy's low-bit part.

    `kinds` of layers take part. The last `keep_last` (a share) of all linears and convolutions stay high, as do those
    with fewer than `min_weights` weights. `history` is how many updates a delayed scale looks back.
    """

    gemms: Gemms
    kinds: tuple[str, ...] = KINDS
    keep_last: float = 0.0
    min_weights: int = 0
    history: int = 16


def low_bit(cfg: PrecisionConfig) -> LowBit | None:
    """The low-bit part of a policy, None where it has none.

    Raises: PrecisionError, with everything that is wrong.
    """
    options = cfg.options
    if not options.get("gemms"):
        return None
    problems = list(_problems(options, cfg.compute))
    gemms = None
    try:
        gemms = gemms_of(options["gemms"])
    except PrecisionError as error:
        problems = [*error.problems, *problems]
    if problems or gemms is None:
        raise PrecisionError(*problems)
    return LowBit(
        gemms,
        tuple(options.get("low_layers", KINDS)),
        float(options.get("keep_last", 0.0)),
        int(options.get("min_weights", 0)),
        int(options.get("history", 16)),
    )


def _problems(options: Mapping[str, Any], compute: str) -> list[Problem]:
    found = []
    if compute not in _HALF:
        what = f"got `{compute}` with precision.gemms"
        found.append(Problem("precision.compute", what, "low-bit products stand in a half policy: bfloat16 or float16"))
    for kind in options.get("low_layers", KINDS):
        if kind not in KINDS:
            found.append(Problem("precision.low_layers", f"got `{kind}`", did_you_mean(str(kind), KINDS)))
    if not 0 <= options.get("keep_last", 0.0) <= 1:
        found.append(Problem("precision.keep_last", f"got {options['keep_last']}", "a share, from 0 to 1"))
    for key, least in (("min_weights", 0), ("history", 1)):
        if options.get(key, least) < least:
            found.append(Problem(f"precision.{key}", f"got {options[key]}", f"want a number ≥ {least}"))
    return found
