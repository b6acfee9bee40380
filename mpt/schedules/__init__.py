"""Learning-rate schedules: pure functions of the update, one file each."""

from __future__ import annotations

from collections.abc import Callable

from mpt import registry
from mpt.config.schema import ScheduleConfig
from mpt.errors import ConfigError, Problem

__all__ = ["lr_at"]


def lr_at(cfg: ScheduleConfig, base: float, total: int) -> Callable[[int], float]:
    """The learning rate of update u (0-based) in a run of `total` updates, as a pure function.

    The first `cfg.warmup` updates rise linearly to `base`; the schedule's own shape takes the rest.
    Raises: ConfigError for an option that the schedule does not have or a value outside its range.
    """
    try:
        factor = registry.load("schedules", cfg.name).build(total=max(total - cfg.warmup, 1), **cfg.options)
    except TypeError as error:
        raise ConfigError(Problem(f"schedule={cfg.name}", f"options {cfg.options} do not fit: {error}")) from None
    except ValueError as error:
        raise ConfigError(Problem(f"schedule={cfg.name}", str(error))) from None
    warmup = cfg.warmup

    def lr(update: int) -> float:
        if update < warmup:
            return base * (update + 1) / warmup
        return float(base * factor(update - warmup))

    return lr
