"""The loss scale doubles after a run of finite steps and halves on overflow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpt.config.schema import ScalingConfig
from mpt.scaling._base import Scaler, limits

OPTIONS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "hysteresis")


class DynamicScaling(Scaler):
    """torch.amp.GradScaler's rule, with a floor, a ceiling and hysteresis.

    With hysteresis h > 1 the scale backs off only at the h-th overflow since it last grew, and at each
    one after that; the count is refilled when the scale grows.
    A scale never grows to inf. With other constants it is the rule of Apex, Keras, Megatron-LM and OpenSeq2Seq.
    Source: torch's `_amp_update_scale_`; hysteresis as in Megatron-LM's DynamicGradScaler.
    """

    def __init__(
        self,
        *,
        init_scale: float,
        growth_factor: float,
        backoff_factor: float,
        growth_interval: int,
        min_scale: float,
        max_scale: float,
        hysteresis: int,
        device: torch.device,
        strategy: str = "dynamic",
    ) -> None:
        self.strategy = strategy
        self.scale = torch.tensor(init_scale, dtype=torch.float32, device=device)
        self.growth_tracker = torch.zeros((), dtype=torch.int32, device=device)
        self.hysteresis_left = torch.tensor(hysteresis, dtype=torch.int32, device=device)
        self._rule = (growth_factor, backoff_factor, growth_interval)
        self._min, self._max, self._hysteresis = min_scale, max_scale, hysteresis

    def update(self, found: Tensor, largest: Tensor | None = None) -> None:
        shrink = found if self._hysteresis == 1 else self._use_up(found)
        torch._amp_update_scale_(self.scale, self.growth_tracker, shrink, *self._rule)
        self.scale.clamp_(self._min, self._max)

    def _use_up(self, found: Tensor) -> Tensor:
        """Whether this overflow shrinks the scale; every overflow restarts the growth count."""
        overflow = found.to(torch.int32)
        grows = (self.growth_tracker + 1 == self._rule[2]) & (overflow == 0)
        self.hysteresis_left.sub_(overflow).clamp_(min=0)
        shrink = found * (self.hysteresis_left == 0)
        self.hysteresis_left.copy_(torch.where(grows, self._hysteresis, self.hysteresis_left))
        # _amp_update_scale_ adds 1 to the tracker of a step that does not shrink: start that sum at -1
        self.growth_tracker.mul_(1 - overflow).sub_(overflow)
        return shrink

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "scale": self.scale,
            "growth_tracker": self.growth_tracker,
            "hysteresis_left": self.hysteresis_left,
        }


def rule(cfg: ScalingConfig) -> dict[str, Any]:
    """The arguments of DynamicScaling, each of which the YAML gives; null limits are none."""
    low, high = limits(cfg)
    given = {key: getattr(cfg, key) for key in OPTIONS}
    return {**given, "min_scale": low, "max_scale": high, "strategy": cfg.name}


def build(cfg: ScalingConfig, device: torch.device) -> DynamicScaling:
    """Dynamic scaling by cfg."""
    return DynamicScaling(**rule(cfg), device=device)
