"""Which layers a low-bit policy takes, and why it leaves the others; works on meta tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from mpt.errors import PrecisionError, Problem
from mpt.formats.operand import Gemms, gemms_of
from mpt.precision.low.settings import LowBit, low_bit
from mpt.precision.roles import multiplies, running_modules
from mpt.precision.rules import formats_inside, matched

if TYPE_CHECKING:
    from mpt.config.schema import LayerRule, PrecisionConfig

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_RAGGED = ("tensor", "delayed", "row", "block", "none")
_ALIGNED = 16
"""What float8 kernels want of every side of a product."""


class Lowered:
    """The layers that become low-bit with their products, and the reason of each that stays high, by name."""

    def __init__(self) -> None:
        self.gemms: dict[str, Gemms] = {}
        self.kept: dict[str, str] = {}


def lowered(model: nn.Module, cfg: PrecisionConfig) -> Lowered:
    """What becomes of every linear, convolution and other layer that multiplies.

    Raises: PrecisionError for bad products, products of a rule that none of its layers can take, or one weight that
    two layers would quantise differently.
    """
    found = Lowered()
    low = low_bit(cfg)
    if low is None:
        return found
    rules, inside = matched(model, cfg), formats_inside(model, cfg)
    layers = [(n, m) for n, m in running_modules(model) if multiplies(m)]
    last = {n for n, _ in layers[len(layers) - math.ceil(low.keep_last * len(layers)) :]} if low.keep_last else set()
    for name, module in layers:
        if inside[name] == "float32":
            continue
        rule = rules.get(name)
        gemms = _own(rule, cfg) or low.gemms
        reason = _by_rule(rule) or _unfit(module, gemms, low)
        if not reason and name in last and not (rule and rule.gemms):
            reason = f"among the last {low.keep_last:.0%} of layers, which the policy keeps high"
        if reason:
            found.kept[name] = reason
        else:
            found.gemms[name] = gemms
    _each_rule_acts(cfg, rules, found)
    _one_way_each(model, found.gemms)
    return found


def _own(rule: LayerRule | None, cfg: PrecisionConfig) -> Gemms | None:
    if rule is None or not rule.gemms:
        return None
    return gemms_of(rule.gemms, f"precision.layers[{cfg.layers.index(rule)}].gemms")


def _each_rule_acts(cfg: PrecisionConfig, rules: dict[str, LayerRule], found: Lowered) -> None:
    """A rule that asks for products of its own, and whose layers all stay high, was not meant so."""
    problems = []
    for i, rule in enumerate(cfg.layers):
        high = [name for name in found.kept if rules.get(name) is rule]
        if rule.gemms and high and not any(rules.get(name) is rule for name in found.gemms):
            what = f"`{rule.match}`: no layer of it can take these products; `{high[0]}`: {found.kept[high[0]]}"
            problems.append(Problem(f"precision.layers[{i}].gemms", what, "use other scales there, or drop the rule"))
    if problems:
        raise PrecisionError(*problems)


def _by_rule(rule: LayerRule | None) -> str:
    return f"kept {rule.format} by the rule `{rule.match}`" if rule is not None and not rule.gemms else ""


def _unfit(module: nn.Module, gemms: Gemms, low: LowBit) -> str:
    """Why a layer can't be low-bit, or gains nothing; empty where it can."""
    reason = _unfit_kind(module, low)
    if reason:
        return reason
    assert isinstance(module, (nn.Linear, *_CONV))
    weights = module.weight.numel()
    if weights < low.min_weights:
        return f"{weights} weights: too small to gain (precision.min_weights={low.min_weights})"
    return _unfit_sides(module, gemms)


def _unfit_kind(module: nn.Module, low: LowBit) -> str:
    if not isinstance(module, (nn.Linear, *_CONV)):
        return f"the products of {type(module).__name__} have no low-bit form here"
    if "linear" not in low.kinds and isinstance(module, nn.Linear):
        return "the policy leaves linears high"
    if isinstance(module, nn.Linear):
        return "" if type(module).forward is nn.Linear.forward else "its forward is its own"
    if "conv" not in low.kinds:
        return "the policy leaves convolutions high"
    if type(module).forward not in {c.forward for c in _CONV}:
        return "its forward is its own"
    if module.groups > 1:
        return "a grouped convolution has too little to multiply"
    uneven = module.padding == "same" and any(
        d * (k - 1) % 2 for d, k in zip(module.dilation, module.kernel_size, strict=True)
    )
    return "its padding is not the same on both sides" if uneven else ""


def _unfit_sides(module: nn.Module, gemms: Gemms) -> str:
    inputs, outputs = _sides(module)
    for op in gemms.operands():
        if not op.low or op.integer_bits is not None:
            continue
        multiple = _ALIGNED if op.scale in _RAGGED else op.block or _ALIGNED
        for what, size in (("inputs", inputs), ("outputs", outputs)):
            if size % multiple:
                return f"{size} {what} are no multiple of {multiple}, which {op.label} wants"
    return ""


def _sides(module: nn.Module) -> tuple[int, int]:
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    assert isinstance(module, _CONV)
    return module.in_channels, module.out_channels


def _one_way_each(model: nn.Module, gemms: dict[str, Gemms]) -> None:
    """A weight that two layers share is quantised in one way."""
    first: dict[int, str] = {}
    problems: list[Problem] = []
    for name, weight in _weights(model, gemms):
        other = first.setdefault(id(weight), name)
        if gemms[other] != gemms[name]:
            what = f"shares its weight with `{other}`, and both have formats of their own"
            problems.append(Problem(f"precision.layers: `{name}`", what, "give both layers the same rule"))
    if problems:
        raise PrecisionError(*problems)


def _weights(model: nn.Module, gemms: dict[str, Gemms]) -> Iterator[tuple[str, nn.Parameter]]:
    for name in gemms:
        weight = model.get_submodule(name).weight
        assert isinstance(weight, nn.Parameter)
        yield name, weight
