"""Batches on their way from page-locked memory to a GPU, beside the step that it computes."""

from __future__ import annotations

import torch
from torch import Tensor


class Upload:
    """Copies tensors to `device`; to CUDA on a stream of its own.

    The host runs ahead of the device, so a batch's copy is asked for while the step before it is computed: on the
    stream of the steps it would wait for that one. Tensors have to lie in page-locked memory for that.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        on_gpu = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """The copies, ready for whatever the current stream is asked for next."""
        if self._stream is None:
            return [t.to(self._device, non_blocking=True) for t in tensors]
        with torch.cuda.stream(self._stream):
            moved = [t.to(self._device, non_blocking=True) for t in tensors]
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in moved:
            tensor.record_stream(current)  # its memory is not given away before this stream is done with it
        return moved
