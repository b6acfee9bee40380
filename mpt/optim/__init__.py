"""Optimizers, one file each, behind one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpt import registry
from mpt.config.schema import OptimizerConfig
from mpt.errors import ConfigError, Problem

if TYPE_CHECKING:
    from torch import Tensor

    from mpt.formats.stored import Storage
    from mpt.optim._base import Optimizer

__all__ = ["build_optimizer", "is_fused"]


def build_optimizer(
    cfg: OptimizerConfig, params: list[Tensor], moment: str, storage: Storage | None = None
) -> Optimizer:
    """The optimizer that cfg names over `params`, its state in format `moment`.

    With a `storage` weights or moments are stored otherwise than its kernel computes.
    Raises: ConfigError for an option it does not have, or a kernel that does not exist.
    """
    entry = registry.load("optim", cfg.name)
    fused = is_fused(cfg, params[0].device.type)
    apart = {} if storage is None else {"storage": storage}
    if apart and not fused:
        what = f"{cfg.name} has no fused kernel on {params[0].device.type}, which these weights or moments need"
        raise ConfigError(Problem(f"optimizer={cfg.name}", what, "use precision.master=float32 and its moments"))
    try:
        optimizer: Optimizer = entry.build(
            params, lr=cfg.lr, weight_decay=cfg.weight_decay, moment=moment, fused=fused, **apart, **cfg.options
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(Problem(f"optimizer={cfg.name}", f"options {cfg.options} do not fit: {error}")) from None
    return optimizer


def is_fused(cfg: OptimizerConfig, device_type: str) -> bool:
    """Whether one kernel updates all parameters and decides the skip itself, by cfg.fused and what exists.

    Raises: ConfigError where a kernel is asked for that does not exist.
    """
    exists = device_type in getattr(registry.load("optim", cfg.name), "FUSED_ON", ())
    if cfg.fused == "true" and not exists:
        raise ConfigError(
            Problem("optimizer.fused", f"`true`, but {cfg.name} has no fused kernel on {device_type}", "use `auto`")
        )
    return exists and cfg.fused != "false"
