"""Images of a resident set, shifted and mirrored on the training device by whole batches.

What a sample gets is a pure function of (seed, epoch, sample): the same on every device, for any number of ranks, and
after a resume. Only integers decide, and pixels are copied, so no number differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpt.data._order import AUGMENT, generator

# B batch, H height, W width, C channels


@dataclass(frozen=True)
class Augment:
    """Shifts of up to `shift` pixels each way, and mirroring of half the images where `flip`."""

    shift: int
    flip: bool

    @property
    def active(self) -> bool:
        return self.flip or self.shift > 0

    def draws(self, seed: int, epoch: int, n: int) -> NDArray[np.int64]:
        """For each of n samples in that epoch: rows down, columns right, and whether it is mirrored (0 or 1).

        Shapes: (n, 3). Bits of one 64-bit number a sample: a shift below 2^32 is biased by less than 2^-16.
        """
        bits = generator(AUGMENT, seed, epoch).random_raw(n)
        span = np.uint64(2 * self.shift + 1)
        down = (bits & np.uint64(2**31 - 1)) % span
        right = (bits >> np.uint64(31) & np.uint64(2**31 - 1)) % span
        mirrored = bits >> np.uint64(63) if self.flip else np.zeros(n, np.uint64)
        moved = np.stack([down, right, mirrored], axis=1).astype(np.int64)
        moved[:, :2] -= self.shift
        return moved


def moved(images: Tensor, draws: Tensor) -> Tensor:
    """Each image moved by its row of `draws`, mirrored first where that says so; 0 (the mean) where nothing was.

    Shapes: images (B, C, H, W), draws (B, 3) int64; the result has the images' memory format.
    """
    b, _, h, w = images.shape
    down, right, mirrored = (column[:, None] for column in draws.unbind(1))
    rows = torch.arange(h, device=images.device) - down  # B, H: the row that comes to each
    columns = torch.arange(w, device=images.device) - right
    inside = ((rows >= 0) & (rows < h))[:, :, None] & ((columns >= 0) & (columns < w))[:, None, :]
    columns = torch.where(mirrored.bool(), w - 1 - columns, columns)
    batch = torch.arange(b, device=images.device)[:, None, None]
    taken = images.permute(0, 2, 3, 1)[batch, rows.clamp(0, h - 1)[:, :, None], columns.clamp(0, w - 1)[:, None, :]]
    out = taken.mul_(inside[..., None]).permute(0, 3, 1, 2)
    last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return out if last else out.contiguous()
