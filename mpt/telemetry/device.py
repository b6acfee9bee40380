"""The queue of a device."""

from __future__ import annotations

import torch


def wait(device: torch.device) -> None:
    """The device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
