"""Delayed scaling: the largest magnitudes of the last updates, for every low-bit layer and role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

ROLES = ("activation", "weight", "gradient")


class AmaxHistory:
    """`expected` gives what a scale is made of, `saw` notes what came; `turn` ends an update.

    Until something was seen, what comes is its own scale. Everything stays on the device.
    Shapes: layers, roles, updates.
    """

    def __init__(self, names: list[str], length: int, device: torch.device) -> None:
        self._names = names
        self._past = torch.zeros(len(names), len(ROLES), length, device=device)
        self._now = torch.zeros(len(names), len(ROLES), device=device)

    def expected(self, layer: int, role: str, now: Tensor) -> Tensor:
        past = self._past[layer, ROLES.index(role)].amax()
        return torch.where(past > 0, past, now)

    def saw(self, layer: int, role: str, now: Tensor) -> None:
        """The largest of what is finite: what is not leads to a skipped step, and must not stay in the scales."""
        slot = self._now[layer, ROLES.index(role)]
        torch.maximum(slot, torch.where(now.isfinite(), now, 0.0), out=slot)

    def turn(self) -> None:
        """What was seen joins the past, and the oldest is forgotten."""
        self._past = torch.cat([self._now.unsqueeze(-1), self._past[..., :-1]], -1)
        self._now.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"layers": list(self._names), "past": self._past, "now": self._now}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Whether the state was of the same layers and length; another one is not taken."""
        if state.get("layers") != self._names or state["past"].shape != self._past.shape:
            return False
        self._past = state["past"].to(self._past.device, copy=True)
        self._now = state["now"].to(self._now.device, copy=True)
        return True
