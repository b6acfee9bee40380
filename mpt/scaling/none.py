"""No loss scaling: gradients are as the backward pass left them."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.config.schema import ScalingConfig
from mpt.scaling._base import Scaler


class NoScaling(Scaler):
    """Scale 1 for ever; a step with a non-finite gradient is still skipped, by the loop."""

    strategy = "none"
    active = False
    changes = False

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.ones((), device=device)

    def update(self, found: Tensor, largest: Tensor | None = None) -> None:
        """Nothing changes."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}


def build(cfg: ScalingConfig, device: torch.device) -> NoScaling:
    """The null strategy on `device`."""
    return NoScaling(device)
