"""DeepSpeed's loss scaling: hysteresis that may be refilled by any finite step, and a floor that ends the run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpt.config.schema import ScalingConfig
from mpt.scaling.dynamic import DynamicScaling, rule


class DeepSpeedScaling(DynamicScaling):
    """As `dynamic`, but for three things that DeepSpeed does otherwise.

    The first growth after an overflow, or after the start, takes one finite step more than growth_interval, further
    ones exactly that many. Where `consecutive_hysteresis`, every finite step refills the hysteresis, not only growth.
    Where `raise_at_floor`, an overflow that would have to back off at the floor ends the run.
    Source: DeepSpeed's deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler.update_scale.
    """

    def __init__(self, *, consecutive_hysteresis: bool, raise_at_floor: bool, **dynamic: Any) -> None:
        super().__init__(**dynamic)
        self.growth_tracker.fill_(-1)
        self.exhausted: Tensor = torch.zeros_like(self.growth_tracker)
        self._consecutive, self._raises = consecutive_hysteresis, raise_at_floor

    def update(self, found: Tensor, largest: Tensor | None = None) -> None:
        growth, backoff, interval = self._rule
        overflow = found.bool()
        shrinks = overflow & (self.hysteresis_left == 1)
        if self._raises:
            self.exhausted |= shrinks & (self.scale <= self._min)
        self.growth_tracker.copy_(torch.where(overflow, -1, self.growth_tracker + 1))
        grows = self.growth_tracker == interval
        self.growth_tracker.masked_fill_(grows, 0)
        grown = (self.scale * growth).clamp_(max=self._max)
        self.scale.copy_(torch.where(grows & grown.isfinite(), grown, self.scale))
        self.scale.copy_(torch.where(shrinks, (self.scale * backoff).clamp_(min=self._min), self.scale))
        self.hysteresis_left.sub_((overflow & ~shrinks).to(torch.int32))
        self.hysteresis_left.masked_fill_(~overflow if self._consecutive else grows, self._hysteresis)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "exhausted": self.exhausted}


def build(cfg: ScalingConfig, device: torch.device) -> DeepSpeedScaling:
    """DeepSpeed's rule by cfg, whose values conf/scaling/deepspeed.yaml gives."""
    return DeepSpeedScaling(**rule(cfg), **cfg.options, device=device)
