"""Module buffers (batch-norm statistics) that a skipped step leaves as they were."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Buffers:
    """All buffers of a model, laid side by side by dtype, so that keeping and restoring is one op each.

    The modules' buffers become views of those flat tensors. A module that assigns a new tensor to a
    buffer instead of changing it in place has the value copied back into its view after the attempt.
    """

    def __init__(self, model: nn.Module) -> None:
        self._slots: list[tuple[nn.Module, str, Tensor]] = []
        self._flat: list[Tensor] = []
        self._layout: list[list[tuple[str, list[int]]]] = []
        owners: dict[int, list[tuple[nn.Module, str]]] = {}
        groups: dict[torch.dtype, list[Tensor]] = {}
        names: dict[int, str] = {}
        for path, module in model.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is None or not buffer.numel():
                    continue
                names.setdefault(id(buffer), f"{path}.{name}" if path else name)
                if id(buffer) not in owners:
                    groups.setdefault(buffer.dtype, []).append(buffer)
                owners.setdefault(id(buffer), []).append((module, name))
        for buffers in groups.values():
            self._layout.append([(names[id(b)], list(b.shape)) for b in buffers])
            self._lay(buffers, owners)
        self._kept = [torch.empty_like(flat) for flat in self._flat]

    def _lay(self, buffers: list[Tensor], owners: dict[int, list[tuple[nn.Module, str]]]) -> None:
        """Side by side; a buffer that several modules share stays shared."""
        flat = torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
        self._flat.append(flat)
        parts = torch.split(flat, [buffer.numel() for buffer in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            # .data: autograd counts changes by view and base, and one buffer's would spoil what is saved of another
            view = part.view(buffer.shape).data
            for module, name in owners[id(buffer)]:
                module._buffers[name] = view
                self._slots.append((module, name, view))

    def floating(self) -> list[Tensor]:
        """The flat tensors of floating buffers, for averages."""
        return [flat for flat in self._flat if flat.is_floating_point()]

    def keep(self) -> None:
        """What the buffers hold now is what `restore` brings back."""
        for kept, flat in zip(self._kept, self._flat, strict=True):
            kept.copy_(flat)

    def restore(self, found: Tensor) -> None:
        """The buffers are as they were at `keep` where `found` is 1, decided on the device."""
        for module, name, view in self._slots:
            if module._buffers[name] is not view:
                view.copy_(module._buffers[name])  # type: ignore[arg-type]
                module._buffers[name] = view
        if self._flat:
            skipped = found.bool()
            for kept, flat in zip(self._kept, self._flat, strict=True):
                torch.where(skipped, kept, flat, out=flat)

    def state_dict(self) -> dict[str, Any]:
        """All of them, those that are in no state dict of the model (persistent=False) too, and their places."""
        return {"flat": self._flat, "layout": self._layout}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for flat, saved in zip(self._flat, state["flat"], strict=True):
            flat.copy_(saved)
