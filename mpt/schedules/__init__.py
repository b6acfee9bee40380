"""Learning-rate schedules: pure functions of the update, one file each."""

from __future__ import annotations

from collections.abc import Callable

from mpt import registry
from mpt.config.schema import ScheduleConfig
from mpt.errors import ConfigError, Problem

__all__ = ["lr_at"]

FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


def lr_at(cfg: ScheduleConfig, base: float, total: int) -> Callable[[int], float]:
    """The learning rate of update u (0-based) in a run of `total` updates, as a pure function.

    The first `cfg.warmup` updates rise linearly to `base`; the schedule's own shape takes the rest.
    Raises: ConfigError for an option that the schedule does not have, a value outside its range, or a rate that
    grows past float32 within the run.
    """
    try:
        factor = registry.load("schedules", cfg.name).build(total=max(total - cfg.warmup, 1), **cfg.options)
    except TypeError as error:
        raise ConfigError(Problem(f"schedule={cfg.name}", f"options {cfg.options} do not fit: {error}")) from None
    except ValueError as error:
        raise ConfigError(Problem(f"schedule={cfg.name}", str(error))) from None
    _require_float32(cfg, base * float(factor(max(total - cfg.warmup, 1))))
    warmup = cfg.warmup

    def lr(update: int) -> float:
        if update < warmup:
            return base * (update + 1) / warmup
        return float(base * factor(update - warmup))

    return lr


def _require_float32(cfg: ScheduleConfig, last: float) -> None:
    """Raises: ConfigError when the last rate, the largest of one that grows, is more than float32 holds."""
    if last > FLOAT32_MAX:
        key = "schedule.gamma" if "gamma" in cfg.options else f"schedule={cfg.name}"
        what = f"got {cfg.options.get('gamma', '')}, by which the rate grows to {last:.3g} at the run's end"
        raise ConfigError(Problem(key, what, f"float32 holds up to {FLOAT32_MAX:.3g}: keep gamma near 1 or below"))
