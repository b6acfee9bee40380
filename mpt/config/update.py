"""Rules about what the optimizer updates: how weights, their master copies and its moments are stored."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from mpt.config.schema import PrecisionConfig, RunConfig
from mpt.errors import Problem

SPLIT = "split"
EIGHT_BIT = "int8"
WINDOWED = ("adam", "adamw", "sgd")
"""Optimizers with a kernel that can run window by window."""
_TORCHAO = "pip install 'torchao==0.18.*'"


def updated_format(p: PrecisionConfig) -> str:
    """The format in which the optimizer's kernel finds most weights."""
    return p.param if p.master is None else "float32"


def rounds_stochastically(p: PrecisionConfig) -> bool:
    """Whether what the optimizer writes to bfloat16 weights is rounded stochastically."""
    return p.options.get("update_rounding") == "stochastic"


def in_windows(p: PrecisionConfig) -> bool:
    """Whether weights or moments are stored otherwise than the kernel computes: it runs window by window then."""
    return p.master == SPLIT or rounds_stochastically(p) or p.moment != updated_format(p)


def update_roles(cfg: RunConfig) -> Iterator[Problem]:
    """Halves and stochastic rounding are of bfloat16 weights."""
    p = cfg.precision
    if p.master is not None and p.param == "float32":
        yield Problem("precision.master", f"got `{p.master}`, but the weights are float32", "set precision.master=null")
    elif p.master == SPLIT and p.param != "bfloat16":
        what = f"got `split` with precision.param={p.param}: only bfloat16 is the high half of float32"
        yield Problem("precision.master", what, "set precision.param=bfloat16, or precision.master=float32")
    if rounds_stochastically(p) and (p.param != "bfloat16" or p.master is not None):
        what = f"got `stochastic`, but the optimizer updates {updated_format(p)}"
        yield Problem("precision.update_rounding", what, "it is for bfloat16 weights without a master copy")


def update_moment(cfg: RunConfig) -> Iterator[Problem]:
    """float16 moments are of float16 weights; bfloat16, float32 and int8 ones of any others."""
    p, updated = cfg.precision, updated_format(cfg.precision)
    if "float16" in (p.moment, updated) and p.moment != updated:
        role = "param" if p.master is None else "master"
        what = f"got `{p.moment}`, but the optimizer updates {updated} (precision.{role})"
        hint = f"set precision.moment={updated}"
        yield Problem("precision.moment", what, hint if updated == "float16" else f"{hint}, bfloat16 or int8")
    if p.moment == EIGHT_BIT and find_spec("torchao") is None:
        yield Problem("precision.moment", "`int8` is stored as torchao does, which is not installed", _TORCHAO)


def update_kernel(cfg: RunConfig) -> Iterator[Problem]:
    """Only fused kernels run window by window."""
    p, o = cfg.precision, cfg.optimizer
    if "float16" in (p.moment, updated_format(p)) or not in_windows(p):
        return
    asked = _asked(p)
    if o.name not in WINDOWED:
        what = f"{asked} needs a kernel that this optimizer does not have"
        yield Problem(f"optimizer={o.name}", what, "use optimizer=" + " or ".join(WINDOWED))
    if o.fused == "false":
        yield Problem("optimizer.fused", f"got `false`, but {asked} runs in the fused kernel", "use `auto`")


def _asked(p: PrecisionConfig) -> str:
    if p.master == SPLIT:
        return "precision.master=split"
    if rounds_stochastically(p):
        return "precision.update_rounding=stochastic"
    return f"precision.moment={p.moment}"


UPDATE = (update_roles, update_moment, update_kernel)
