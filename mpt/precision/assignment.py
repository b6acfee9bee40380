"""What each module will compute in, and why; decided without touching the model, on meta tensors too."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpt.precision.capability import Mechanism
from mpt.precision.low.attending import attending
from mpt.precision.low.eligible import lowered
from mpt.precision.low.ways import ways
from mpt.precision.roles import (
    is_batch_norm,
    is_norm,
    kept_parameters,
    multiplies,
    own_parameters,
    running_modules,
)
from mpt.precision.rules import changes_of_format, formats_inside, matched
from mpt.types import ModuleRow

if TYPE_CHECKING:
    from mpt.config.schema import LayerRule, PrecisionConfig

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_EMBEDDING = (nn.Embedding, nn.EmbeddingBag)
_KIND_OF_OP: dict[type[nn.Module], str] = {
    nn.Softmax: "softmax",
    nn.Softmax2d: "softmax",
    nn.Softmin: "softmax",
    nn.LogSoftmax: "softmax",
    nn.Softplus: "exp_log_pow",
    nn.Upsample: "resize",
    nn.LayerNorm: "norm",
    nn.GroupNorm: "norm",
    nn.RMSNorm: "norm",
}


def assign(model: nn.Module, cfg: PrecisionConfig, mechanism: Mechanism) -> tuple[ModuleRow, ...]:
    """One row for every module that computes: those without children, and those with parameters of their own.

    Raises: PrecisionError for a rule that matches nothing.
    """
    planned = _Planned(model, cfg, mechanism)
    return tuple(planned.row(name, module) for name, module in computing(model, planned.attending))


def settled(mechanism: Mechanism, rows: tuple[ModuleRow, ...]) -> Mechanism:
    """The mechanism as these layers have it: low-bit products are native where all are, and none where no layer has."""
    low = [row for row in rows if row.kind == "gemm" and row.compute not in (mechanism.compute, "float32")]
    if mechanism.low and not low and not any(row.kind == "attention" for row in rows):
        return replace(mechanism, low="", low_how=mechanism.how, low_reason="", scale_rules=(), native=())
    if mechanism.low_how == "emulated" or all(row.how == "native" for row in low):
        return mechanism
    reason = f"{mechanism.low_reason}; the rows of emulated layers say why"
    return replace(mechanism, low_how="emulated", low_reason=reason)


def computing(model: nn.Module, besides: Collection[str] = ()) -> Iterator[tuple[str, nn.Module]]:
    """Modules that get a row, those named `besides` too, in the order of `named_modules`."""
    for name, module in running_modules(model):
        leaf = not any(True for _ in module.children()) and not isinstance(module, _CONTAINERS)
        if leaf or name in besides or any(True for _ in own_parameters(module)):
            yield name, module


def kind_of(module: nn.Module) -> str:
    """gemm, norm, embedding, composite (parameters of its own beside children) or other."""
    if multiplies(module):
        return "gemm"
    if is_norm(module):
        return "norm"
    if isinstance(module, _EMBEDDING):
        return "embedding"
    return "composite" if any(True for _ in module.children()) else "other"


class _Planned:
    def __init__(self, model: nn.Module, cfg: PrecisionConfig, mechanism: Mechanism) -> None:
        self._cfg = cfg
        self._mechanism = mechanism
        self._rules = matched(model, cfg)
        self._inside = formats_inside(model, cfg)
        kept = {name for name, now in changes_of_format(model, cfg).items() if now == "float32"}
        self._float32 = kept_parameters(model, kept)
        self._low = lowered(model, cfg)
        self.attending = attending(model, cfg)
        self._ways = ways(model, self._low.gemms, cfg, mechanism)
        self._counted: dict[int, str] = {}

    def row(self, name: str, module: nn.Module) -> ModuleRow:
        kind = "attention" if name in self.attending else kind_of(module)
        count, tied = self._count(name, module)
        compute, how, reason = self._compute(name, module, kind)
        if tied:
            reason += f"; weights tied to {tied}"
        param = self._param(module)
        return ModuleRow(name, type(module).__name__, kind, count, param, compute, how, reason)

    def _compute(self, name: str, module: nn.Module, kind: str) -> tuple[str, Any, str]:
        rule = self._rules.get(name)
        if self._inside[name] == "float32" and self._cfg.compute != "float32":
            by = "norm is kept in float32" if rule is None else f"kept float32 by the rule `{_told(rule)}`"
            return "float32", "native", by
        if name in self.attending:
            label = self.attending[name].label
            return label, "emulated", f"attends with operands {label}, sums and softmax float32, straight-through"
        if name in self._low.gemms:
            return self._low_bit(name)
        if kind == "gemm" and name in self._low.kept:
            return self._mechanism.compute, self._mechanism.how, self._low.kept[name]
        if kind == "gemm":
            return self._mechanism.compute, self._mechanism.how, self._why_gemm(rule)
        op = next((k for t, k in _KIND_OF_OP.items() if isinstance(module, t)), None)
        if op is not None and op in self._cfg.keep and self._mechanism.half:
            return "float32", "native", f"{op} is kept in float32"
        if is_batch_norm(module):
            return "follows", "follows", "follows its input; statistics and parameters are float32"
        if kind == "embedding":
            return "follows", "follows", "a look-up: the format of its weights"
        return "follows", "follows", "follows its input and the op policy"

    def _low_bit(self, name: str) -> tuple[str, Any, str]:
        label, way = self._low.gemms[name].label, self._ways[name]
        told = f"operands {label}, sums float32, results {self._mechanism.compute}"
        if not isinstance(way, str):
            return label, "native", f"{told}; torchao's {way.name}"
        # The reason of all stands above the table, once.
        return label, "emulated", told if way == self._mechanism.low_reason else f"{told}; emulated: {way}"

    def _why_gemm(self, rule: LayerRule | None) -> str:
        if self._mechanism.compute == "float32":
            return "the policy computes in float32"
        by = "the policy" if rule is None else f"the rule `{_told(rule)}`"
        return f"operands {self._mechanism.compute} by {by}, sums float32"

    def _count(self, name: str, module: nn.Module) -> tuple[int, str]:
        """Parameters not counted in an earlier row, and the first module that has those that were."""
        count, tied = 0, ""
        for p in own_parameters(module):
            if id(p) in self._counted:
                tied = self._counted[id(p)]
            else:
                self._counted[id(p)] = name
                count += p.numel()
        return count, tied

    def _param(self, module: nn.Module) -> str:
        formats = {self._stored(p) for p in own_parameters(module)}
        return "/".join(sorted(formats)) or "-"

    def _stored(self, p: torch.nn.Parameter) -> str:
        if not p.is_floating_point():
            return str(p.dtype).removeprefix("torch.")
        return "float32" if id(p) in self._float32 else self._cfg.param


def _told(rule: LayerRule) -> str:
    return rule.match if rule.type is None else f"{rule.match} ({rule.type})"
