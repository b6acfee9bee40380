"""`precision.layers`: ordered rules over module names, and the borders where a module leaves its parent's format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torch import nn

from mpt.errors import PrecisionError, Problem
from mpt.precision.roles import computes_norm_itself, multiplies, running_modules
from mpt.registry import did_you_mean

if TYPE_CHECKING:
    from mpt.config.schema import LayerRule, PrecisionConfig


def matched(model: nn.Module, cfg: PrecisionConfig) -> dict[str, LayerRule]:
    """For each module, the first rule that matches it, else that of the module it lies in.

    Raises: PrecisionError, all at once, for a rule that matches nothing or asks for a format the policy has not.
    """
    _check(model, cfg)
    found: dict[str, LayerRule] = {}
    chosen = [(rule, _chosen(rule, model)) for rule in cfg.layers]
    for name, _ in running_modules(model):
        own = next((rule for rule, names in chosen if name in names), None)
        rule = own or found.get(name.rpartition(".")[0] if name else "")
        if rule is not None:
            found[name] = rule
    return found


def formats_inside(model: nn.Module, cfg: PrecisionConfig) -> dict[str, str]:
    """What each module computes in: as a rule says; float32 for norms that are no kernel of torch's; the policy's."""
    rules = matched(model, cfg)
    norms = "float32" if "norm" in cfg.keep and cfg.compute in ("float16", "bfloat16") else cfg.compute
    return {
        name: rules[name].format if name in rules else norms if computes_norm_itself(module) else cfg.compute
        for name, module in running_modules(model)
    }


def changes_of_format(model: nn.Module, cfg: PrecisionConfig) -> dict[str, str]:
    """Modules at which the format changes, and what it becomes inside: float32 or the compute format."""
    inside = formats_inside(model, cfg)
    above = {name: inside[name.rpartition(".")[0]] if name else cfg.compute for name in inside}
    return {name: now for name, now in inside.items() if now != above[name]}


def _chosen(rule: LayerRule, model: nn.Module) -> set[str]:
    """Names of the modules that a rule matches; with `first` or `last`, only those of its first or last layers."""
    names = [(n, m) for n, m in running_modules(model) if _matches(rule, n, m)]
    if rule.first is None and rule.last is None:
        return {n for n, _ in names}
    layers = [n for n, m in names if multiplies(m)]
    return set(layers[: rule.first or 0]) | set(layers[len(layers) - rule.last :] if rule.last else ())


def _matches(rule: LayerRule, name: str, module: nn.Module) -> bool:
    if rule.type is not None and type(module).__name__ != rule.type:
        return False
    if rule.below is not None and not 0 < sum(p.numel() for p in module.parameters()) < rule.below:
        return False
    if rule.match.startswith("re:"):
        return re.search(rule.match[3:], name) is not None
    return fnmatchcase(name, rule.match)


def _check(model: nn.Module, cfg: PrecisionConfig) -> None:
    problems = []
    for i, rule in enumerate(cfg.layers):
        where = f"precision.layers[{i}]"
        if rule.format not in ("float32", cfg.compute):
            want = dict.fromkeys(("float32", cfg.compute))
            problems.append(Problem(f"{where}.format", f"got `{rule.format}`", "want " + " or ".join(want)))
        problem = _bad_pattern(where, rule) or _no_match(where, rule, model) or _idle(i, cfg.layers, model)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise PrecisionError(*problems)


def _bad_pattern(where: str, rule: LayerRule) -> Problem | None:
    if rule.match.startswith("re:"):
        try:
            re.compile(rule.match[3:])
        except re.error as error:
            return Problem(f"{where}.match", f"got `{rule.match}`: {error}", "write a regular expression after `re:`")
    return None


def _no_match(where: str, rule: LayerRule, model: nn.Module) -> Problem | None:
    modules = dict(running_modules(model))
    if _chosen(rule, model):
        return None
    if _chosen(type(rule)(rule.match, rule.format, rule.type), model):
        what = f"`{rule.match}` matches modules, but none with these first, last or below"
        return Problem(f"{where}.match", what, "first and last count layers that multiply; below counts weights")
    by_name = [n for n, m in modules.items() if rule.type is not None and _matches_name(rule, n, m)]
    if by_name:
        types = sorted({type(modules[n]).__name__ for n in by_name})
        what = f"no module that matches `{rule.match}` is of type `{rule.type}`"
        return Problem(f"{where}.type", what, did_you_mean(rule.type or "", types))
    names = [n for n in modules if n]
    return Problem(f"{where}.match", f"`{rule.match}` matches no module", did_you_mean(_literal(rule.match), names))


def _idle(i: int, rules: Sequence[LayerRule], model: nn.Module) -> Problem | None:
    """A rule all of whose modules an earlier one takes."""
    names = _chosen(rules[i], model)
    before = [k for k, rule in enumerate(rules[:i]) if names & _chosen(rule, model)] if names else []
    if not before or names - set().union(*(_chosen(rules[k], model) for k in before)):
        return None
    taken = " and ".join(f"[{k}] `{rules[k].match}`" for k in before)
    what = f"`{rules[i].match}` decides nothing: all {len(names)} of its modules are taken by the rules {taken}"
    return Problem(f"precision.layers[{i}].match", what, "the first rule that matches wins: put the narrower one first")


def _matches_name(rule: LayerRule, name: str, module: nn.Module) -> bool:
    return _matches(type(rule)(rule.match, rule.format), name, module)


def _literal(pattern: str) -> str:
    """The pattern without its wildcards, to look for near names with."""
    return re.sub(r"[*?\[\]^$\\()|+]", "", pattern.removeprefix("re:")).strip(".")
