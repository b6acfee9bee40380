"""What every loss-scaling strategy is: state on the device and a pure update of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mpt.config.schema import ScalingConfig

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
"""Limits where none is asked for: float32's own, so that no scale becomes 0 or inf."""


def limits(cfg: ScalingConfig) -> tuple[float, float]:
    """The floor and the ceiling."""
    low, high = cfg.min_scale, cfg.max_scale
    return SMALLEST if low is None else low, LARGEST if high is None else high


class Scaler:
    """The owner of the loss scale.

    `scale` is 0-dim float32 on the training device; it changes only in `update`. `active`: it is not 1 for ever;
    `changes`: `update` may change it. A strategy with `wants_largest` is told the largest magnitude of the unscaled
    gradients. `exhausted` (0-dim int32) becomes 1 where a strategy says that it can go no lower: the run ends.
    `leaves` collect gradients of the strategy's own, which every attempt starts without.
    """

    strategy = ""
    active = True
    changes = True
    wants_largest = False
    exhausted: Tensor | None = None
    leaves: Sequence[Tensor] = ()
    scale: Tensor

    def attach(self, model: nn.Module) -> None:
        """Put into the model what the strategy needs there; called once, before the precision policy is."""

    def update(self, found: Tensor, largest: Tensor | None = None) -> None:
        """One decision from one attempt, with no read on the host.

        `found` is 0-dim float32, 1 where any gradient of any rank was non-finite, else 0.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor that the next update depends on."""
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The tensors hold `state`'s values, bit for bit; both must name the same ones."""
        own = self.state_dict()
        assert own.keys() == state.keys(), f"scaler state holds {sorted(state)}, want {sorted(own)}"
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def facts(self) -> dict[str, object]:
        """What summary.json tells of the strategy besides its scale; reads the device."""
        return {}
