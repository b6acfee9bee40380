"""Which modules attend with low-bit operands: those that a policy or a rule asks for. Works on meta tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from mpt.errors import PrecisionError, Problem
from mpt.formats.attention import Attention, attention_of
from mpt.precision.roles import multiplies, running_modules
from mpt.precision.rules import formats_inside, matched
from mpt.registry import did_you_mean

if TYPE_CHECKING:
    from mpt.config.schema import LayerRule, PrecisionConfig


def attending(model: nn.Module, cfg: PrecisionConfig) -> dict[str, Attention]:
    """Operands by module: of the rule that matches it, else the policy's.

    Modules that attend are those whose class says so, and those whose class a rule names; of nested ones the innermost.
    torch's own MultiheadAttention stays high: it multiplies inside one function.
    Raises: PrecisionError where attention is asked for and nothing attends.
    """
    whole = attention_of(cfg.options.get("attention"))
    if whole is None and not any(rule.attention for rule in cfg.layers):
        return {}
    rules, inside = matched(model, cfg), formats_inside(model, cfg)
    found = {}
    for name, module in running_modules(model):
        rule = rules.get(name)
        asked = _own(rule, cfg) or whole
        if asked is not None and inside[name] != "float32" and _attends(module, rule):
            found[name] = asked
    found = {name: asked for name, asked in found.items() if not any(n.startswith(f"{name}.") for n in found)}
    _someone(model, cfg, whole, rules, found)
    return found


def _own(rule: LayerRule | None, cfg: PrecisionConfig) -> Attention | None:
    if rule is None or not rule.attention:
        return None
    return attention_of(rule.attention, f"precision.layers[{cfg.layers.index(rule)}].attention")


def _attends(module: nn.Module, rule: LayerRule | None) -> bool:
    if multiplies(module):
        return False
    kind = type(module).__name__
    named = rule is not None and bool(rule.attention) and rule.type == kind
    return named or "attention" in kind.lower()


def _someone(
    model: nn.Module,
    cfg: PrecisionConfig,
    whole: Attention | None,
    rules: dict[str, LayerRule],
    found: dict[str, Attention],
) -> None:
    hint = did_you_mean("Attention", sorted({type(m).__name__ for _, m in running_modules(model)}))
    problems = []
    if whole is not None and not found:
        problems.append(Problem("precision.attention", "no module of this model is called attention", hint))
    for i, rule in enumerate(cfg.layers):
        if rule.attention and not any(rules.get(name) is rule for name in found):
            what = f"`{rule.match}` matches no module that attends"
            problems.append(Problem(f"precision.layers[{i}].attention", what, f"give its class as type: …; {hint}"))
    if problems:
        raise PrecisionError(*problems)
