"""Module buffers (batch-norm statistics) that a skipped step leaves as they were."""

from __future__ import annotations

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
        groups: dict[torch.dtype, list[tuple[nn.Module, str, Tensor]]] = {}
        seen: set[int] = set()
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.numel() and id(buffer) not in seen:
                    seen.add(id(buffer))
                    groups.setdefault(buffer.dtype, []).append((module, name, buffer))
        for slots in groups.values():
            self._lay(slots)
        self._kept = [torch.empty_like(flat) for flat in self._flat]

    def _lay(self, slots: list[tuple[nn.Module, str, Tensor]]) -> None:
        flat = torch.cat([buffer.detach().reshape(-1) for _, _, buffer in slots])
        self._flat.append(flat)
        views = torch.split(flat, [buffer.numel() for _, _, buffer in slots])
        for (module, name, buffer), view in zip(slots, views, strict=True):
            module._buffers[name] = view.view(buffer.shape)
            self._slots.append((module, name, module._buffers[name]))  # type: ignore[arg-type]

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
