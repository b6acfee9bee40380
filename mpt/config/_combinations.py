"""Rules about keys that must fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec

from mpt.config.ranges import STORED, WORDS, range_problems
from mpt.config.schema import RunConfig, ScalingConfig
from mpt.errors import Problem
from mpt.formats.table import COMPUTE
from mpt.registry import did_you_mean

_UNLIMITED = ("min_scale", "max_scale", "max_consecutive_skips")
"""Keys of scaling that null switches off."""
_SCALE_KEYS = tuple(f.name for f in fields(ScalingConfig) if f.name not in ("name", "rule", "options", "uses"))


def _scaled(cfg: RunConfig) -> bool:
    return cfg.scaling.name != "none"


def _asked(cfg: RunConfig) -> str:
    return f"scaling={cfg.scaling.name} with precision={cfg.precision.name}"


def scaler_with_wide_format(cfg: RunConfig) -> Iterator[Problem]:
    """Field report A11: steps are skipped for nothing."""
    compute = cfg.precision.compute
    if _scaled(cfg) and compute in COMPUTE and compute != "float16":
        what = f"{compute} has the range of float32: there is nothing to scale"
        yield Problem(_asked(cfg), what, "leave scaling away (scaling=none), or use precision=fp16")


def scaler_without_masters(cfg: RunConfig) -> Iterator[Problem]:
    """Half gradients can't be unscaled in their own format."""
    p = cfg.precision
    if _scaled(cfg) and p.compute == p.param == "float16" and p.master is None:
        what = "float16 weights without a float32 master copy have gradients that can't be unscaled"
        yield Problem(_asked(cfg), what, "use precision=fp16_master or precision=fp16, or scaling=none")


def scaler_by_layer(cfg: RunConfig) -> Iterator[Problem]:
    """A layer's scale is divided out of its weights' gradients in their own format, which has to hold them."""
    p = cfg.precision
    if "per_layer" in (cfg.scaling.rule, cfg.scaling.name) and p.param == "float16":
        what = "gradients of float16 weights would be scaled back in float16, which has no room for them"
        yield Problem(_asked(cfg), what, "use precision=fp16, or scaling=dynamic")


def scaling_limits(cfg: RunConfig) -> Iterator[Problem]:
    """Floor ≤ initial scale ≤ ceiling, where each alone is a scale."""
    s = cfg.scaling
    if range_problems({f"scaling.{k}": getattr(s, k) for k in ("init_scale", "min_scale", "max_scale")}):
        return
    if s.min_scale is not None and s.max_scale is not None and s.min_scale > s.max_scale:
        yield Problem("scaling.min_scale", f"got {s.min_scale:g}, above scaling.max_scale={s.max_scale:g}", "swap them")
        return
    if s.init_scale is None:
        return
    if s.min_scale is not None and s.init_scale < s.min_scale:
        what = f"got {s.init_scale:g}, below scaling.min_scale={s.min_scale:g}"
        yield Problem("scaling.init_scale", what, f"lower the floor too: scaling.min_scale={s.init_scale:g}")
    if s.max_scale is not None and s.init_scale > s.max_scale:
        what = f"got {s.init_scale:g}, above scaling.max_scale={s.max_scale:g}"
        yield Problem("scaling.init_scale", what, f"raise the ceiling too: scaling.max_scale={s.init_scale:g}")


def scaling_needs_values(cfg: RunConfig) -> Iterator[Problem]:
    """What a strategy lists is a number, but for limits."""
    values = {**vars(cfg.scaling), **cfg.scaling.options}
    for key in cfg.scaling.uses:
        if values.get(key) is None and key not in _UNLIMITED:
            verb = "starts from" if key == "init_scale" else "needs"
            yield Problem(f"scaling.{key}", "got null", f"scaling={cfg.scaling.name} {verb} a number")


def scaling_unused(cfg: RunConfig) -> Iterator[Problem]:
    """A value that would do nothing is a misunderstanding."""
    for key in _SCALE_KEYS:
        value = getattr(cfg.scaling, key)
        if value is not None and key not in cfg.scaling.uses:
            what = f"got {value:g}, which scaling={cfg.scaling.name} has no use for"
            hint = "use scaling=dynamic" if cfg.precision.compute == "float16" else "leave it away"
            yield Problem(f"scaling.{key}", what, hint)


def precision_roles(cfg: RunConfig) -> Iterator[Problem]:
    """Weights are stored in float32 or in the compute format."""
    p = cfg.precision
    if p.param in STORED and p.compute in COMPUTE and p.param not in ("float32", p.compute):
        what = f"got `{p.param}` with precision.compute={p.compute}, want float32 or {p.compute}"
        yield Problem("precision.param", what, f"precision.param=float32 or precision.compute={p.param}")


def precision_keep(cfg: RunConfig) -> Iterator[Problem]:
    """Kinds of ops that there are."""
    from mpt.precision.ops import KINDS

    for kind in cfg.precision.keep:
        if kind not in KINDS:
            yield Problem("precision.keep", f"got `{kind}`", did_you_mean(kind, list(KINDS)))


def precision_layers(cfg: RunConfig) -> Iterator[Problem]:
    """Rules by layer name a format and a pattern that can be read; TF32 can't be had for some layers only."""
    for index, rule in enumerate(cfg.precision.layers):
        where = f"precision.layers[{index}]"
        if rule.format not in COMPUTE:
            yield Problem(f"{where}.format", f"got `{rule.format}`", did_you_mean(rule.format, list(COMPUTE)))
        if rule.match.startswith("re:"):
            try:
                re.compile(rule.match[3:])
            except re.error as error:
                what = f"`{rule.match}` is no regular expression: {error}"
                yield Problem(f"{where}.match", what, "a glob needs no re: before it")
        if rule.format == "tfloat32" or cfg.precision.compute == "tfloat32":
            what = "TF32 is one switch for the whole process, not for single layers"
            yield Problem(where, what, "use precision=tf32 without precision.layers, or another precision")


def lbfgs_with_half(cfg: RunConfig) -> Iterator[Problem]:
    """Field report A13: a closure that is evaluated several times can't be scaled or skipped."""
    if cfg.optimizer.name == "lbfgs" and "float16" in (cfg.precision.param, cfg.precision.compute):
        what = "L-BFGS evaluates the loss several times in one update, which float16 and loss scaling can't follow"
        yield Problem(f"optimizer=lbfgs with precision={cfg.precision.name}", what, "use precision=bf16 or fp32")


def optimizer_options(cfg: RunConfig) -> Iterator[Problem]:
    """Options that contradict one another."""
    o = cfg.optimizer
    if o.name == "lbfgs" and cfg.trainer.clip_norm is not None:
        what = f"got {cfg.trainer.clip_norm:g}, but a line search along a clipped gradient is not L-BFGS"
        yield Problem("trainer.clip_norm", what, "with optimizer=lbfgs say trainer.clip_norm=null")
    if o.name == "lbfgs" and o.weight_decay:
        what = f"got {o.weight_decay:g}, but L-BFGS has no weight decay"
        yield Problem("optimizer.weight_decay", what, "set it to 0")
    if o.options.get("nesterov") and not o.options.get("momentum"):
        yield Problem("optimizer.nesterov", "got `true` without momentum", "set optimizer.momentum above 0")
    betas = o.options.get("betas", [0.9, 0.999])
    if not isinstance(betas, list) or len(betas) != 2 or None in betas:
        what = f"got {'null' if betas is None else betas}, want two numbers ≥ 0 and < 1"
        yield Problem("optimizer.betas", what, "e.g. optimizer.betas=[0.9,0.999]")


def unsafe_loss(cfg: RunConfig) -> Iterator[Problem]:
    """Field report B1: refused on every device alike."""
    from mpt.tasks._safety import LOSSES, UNSAFE_IN_HALF

    loss = cfg.task.options.get("loss")
    if loss is None:
        return
    if loss not in LOSSES:
        yield Problem("task.loss", f"got `{loss}`, want one of {', '.join(LOSSES)}", did_you_mean(str(loss), LOSSES))
    half = {"float16", "bfloat16"} & {cfg.precision.param, cfg.precision.compute}
    if loss in UNSAFE_IN_HALF and half:
        what = f"with precision={cfg.precision.name}: a sigmoid in {half.pop()} rounds to exactly 0 or 1"
        yield Problem(f"task.loss={loss}", what, "use task.loss=bce_with_logits, or precision=fp32")


def loss_weight(cfg: RunConfig) -> Iterator[Problem]:
    """A weight of 0 trains nothing."""
    if cfg.task.loss_weight == 0:
        yield Problem("task.loss_weight", "got 0: nothing would be trained", "give a number other than 0")


def lengths(cfg: RunConfig) -> Iterator[Problem]:
    """Rules that act at evaluations have some."""
    t = cfg.trainer
    if t.patience is not None and t.eval_every == 0:
        what = "never acts with trainer.eval_every=0 (evaluation only at the end)"
        yield Problem("trainer.patience", what, "set trainer.eval_every, or leave patience away")


def loggers(cfg: RunConfig) -> Iterator[Problem]:
    """Trackers come in extras of their own names."""
    for name in cfg.logger:
        if name in WORDS["logger"] and find_spec(name) is None:
            hint = f"pip install {name}; steps.jsonl has every number without it"
            yield Problem("logger", f"`{name}` is not installed", hint)


def numerics_rules(cfg: RunConfig) -> Iterator[Problem]:
    """Looks that are never made, or at what there is not."""
    if cfg.numerics == "off" and cfg.numerics_every is not None:
        yield Problem("numerics_every", f"got {cfg.numerics_every} with numerics=off", "say numerics=light or full")
    if cfg.numerics != "off" and cfg.optimizer.name == "lbfgs":
        what = "L-BFGS evaluates the loss several times in one update: there is no one gradient to look at"
        yield Problem(f"numerics={cfg.numerics} with optimizer=lbfgs", what, "use numerics=off, or another optimizer")


COMBINATIONS = (
    *(
        scaler_with_wide_format,
        scaler_without_masters,
        scaler_by_layer,
        scaling_limits,
        scaling_needs_values,
        scaling_unused,
    ),
    *(precision_roles, precision_keep, precision_layers, lbfgs_with_half, optimizer_options),
    *(unsafe_loss, loss_weight, lengths, loggers, numerics_rules),
)
