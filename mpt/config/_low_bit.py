"""Rules about low-bit products: what `precision.gemms` and a layer's own may say."""

from __future__ import annotations

from collections.abc import Iterator

from mpt.config.schema import LayerRule, RunConfig
from mpt.config.update import rounds_stochastically
from mpt.errors import PrecisionError, Problem
from mpt.formats.attention import attention_of
from mpt.formats.operand import gemms_of
from mpt.formats.table import COMPUTE

_HALF = ("bfloat16", "float16")


def low_bit_products(cfg: RunConfig) -> Iterator[Problem]:
    """Formats, scales and words that there are, over a half policy."""
    options = cfg.precision.options
    if not options.get("gemms"):
        return
    yield from _products(options["gemms"], "precision.gemms")
    if cfg.precision.compute in COMPUTE and cfg.precision.compute not in _HALF:
        what = f"got `{cfg.precision.compute}` with precision.gemms"
        yield Problem("precision.compute", what, "low-bit products stand in a half policy: bfloat16 or float16")
    p = cfg.precision
    if p.param != "float32" and p.master is None and not rounds_stochastically(p):
        what = f"got `{p.param}` with precision.gemms and no master copy"
        yield Problem("precision.param", what, "store float32, or set precision.master=float32 or split")


def low_bit_layers(cfg: RunConfig) -> Iterator[Problem]:
    """Rules whose numbers count something, and whose products stand in a low-bit policy."""
    for index, rule in enumerate(cfg.precision.layers):
        where = f"precision.layers[{index}]"
        yield from _counts(rule, where)
        if not rule.gemms:
            continue
        yield from _products(rule.gemms, f"{where}.gemms")
        if not cfg.precision.options.get("gemms"):
            what = f"a rule has products of its own, but precision={cfg.precision.name} is no low-bit policy"
            yield Problem(f"{where}.gemms", what, "use one with precision.gemms, such as precision=fp8")
        elif rule.format != cfg.precision.compute:
            what = f"got `{rule.format}` beside products of its own"
            yield Problem(f"{where}.format", what, f"want {cfg.precision.compute}, which their results have")


def low_bit_attention(cfg: RunConfig) -> Iterator[Problem]:
    """Operands that there are, over a half policy; a rule that has them computes in its format."""
    p = cfg.precision
    asked = [("precision.attention", p.options.get("attention"))]
    asked += [(f"precision.layers[{i}].attention", rule.attention) for i, rule in enumerate(p.layers)]
    for where, given in asked:
        try:
            found = attention_of(given, where)
        except PrecisionError as error:
            yield from error.problems
            continue
        if found is not None and p.compute not in _HALF:
            what = f"got {found.label} with precision.compute={p.compute}"
            yield Problem(where, what, "low-bit products stand in a half policy, such as precision=bf16")
    for i, rule in enumerate(p.layers):
        if rule.attention and rule.format == "float32":
            yield Problem(f"precision.layers[{i}].format", "got `float32` beside attention", f"want {p.compute}")


def _counts(rule: LayerRule, where: str) -> Iterator[Problem]:
    for key in ("first", "last", "below"):
        value = getattr(rule, key)
        if value is not None and value < 1:
            yield Problem(f"{where}.{key}", f"got {value}", "want a number ≥ 1")


def _products(given: object, where: str) -> Iterator[Problem]:
    try:
        gemms_of(given, where)  # type: ignore[arg-type]
    except PrecisionError as error:
        yield from error.problems


LOW_BIT = (low_bit_products, low_bit_layers, low_bit_attention)
