"""No loss scaling: gradients are as the backward pass left them."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.config.schema import ScalingConfig


class NoScaling:
    """Scale 1 for ever; a step with a non-finite gradient is still skipped, by the loop."""

    strategy = "none"
    active = False
    changes = False

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.ones((), device=device)

    def update(self, found: Tensor) -> None:
        """Nothing changes."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Nothing to restore."""


def build(cfg: ScalingConfig, device: torch.device) -> NoScaling:
    """The null strategy on `device`."""
    return NoScaling(device)
