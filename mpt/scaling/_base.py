"""What every loss-scaling strategy is: state on the device and a pure update of it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Scaler(Protocol):
    """The owner of the loss scale.

    `scale` is 0-dim float32 on the training device; it changes only in `update`, which takes
    `found` (0-dim float32, 1.0 where any gradient of any rank was non-finite, else 0.0).
    """

    strategy: str
    active: bool
    changes: bool
    scale: Tensor

    def update(self, found: Tensor) -> None: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


def copy_state(own: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """`own` holds `state`'s values, bit for bit; both must name the same tensors."""
    assert own.keys() == state.keys(), f"scaler state holds {sorted(state)}, want {sorted(own)}"
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])
