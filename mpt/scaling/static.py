"""A loss scale that never changes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.config.schema import ScalingConfig
from mpt.scaling._base import Scaler


class StaticScaling(Scaler):
    """The number that was asked for, on every step, whatever overflows."""

    strategy = "static"
    changes = False

    def __init__(self, scale: float, device: torch.device) -> None:
        self.scale = torch.tensor(scale, dtype=torch.float32, device=device)

    def update(self, found: Tensor, largest: Tensor | None = None) -> None:
        """Nothing changes."""


def build(cfg: ScalingConfig, device: torch.device) -> StaticScaling:
    """Static scaling by cfg.init_scale."""
    assert cfg.init_scale is not None, "conf/scaling/static.yaml gives init_scale"
    return StaticScaling(cfg.init_scale, device)
