"""Image files to crops of one size: decoding, and torchvision's transforms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms import v2

from mpt.data._decode import UNREADABLE, Colour, decode_and_tell, format_of, format_of_name
from mpt.data._tree import Tree

Crop = Callable[[Tensor], Tensor]

# Evaluation cuts the middle 7/8 of the shorter side: the usual 224 of 256.
CENTRE = 0.875


class FolderReader:
    """Crops of a tree's files. Shapes: H,W,C uint8 and 0-dim int64 labels."""

    unreadable: tuple[type[Exception], ...] = UNREADABLE

    def __init__(self, tree: Tree, shape: tuple[int, int, int], background: Colour, augment: bool) -> None:
        self._tree, self._channels, self._background = tree, shape[0], background
        self.changed: tuple[str, ...] = ()
        self._crop: Crop = random_crop(shape[1:]) if augment else centre_crop(shape[1:])

    def __len__(self) -> int:
        return len(self._tree)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Randomness is torch's, which the caller has seeded for this sample."""
        pixels, self.changed = decode_and_tell(self._tree.path(index), self._channels, self._background)
        crop = self._crop(pixels.permute(2, 0, 1)).permute(1, 2, 0).contiguous()
        return crop, torch.tensor(int(self._tree.labels[index]))

    def name(self, index: int) -> str:
        """The file's path."""
        return self._tree.path(index)

    def look(self, index: int) -> tuple[str, ...]:
        """What is odd about the file but can be trained on, decoded in full."""
        path = self._tree.path(index)
        _, changed = decode_and_tell(path, self._channels, self._background)
        found, named = format_of(path), format_of_name(path)
        return changed if named in ("", found) else (*changed, f"{found} inside a file named {named}")


def random_crop(size: tuple[int, int]) -> Crop:
    """8–100 % of the area, scaled to `size`, mirrored half of the time: the usual training crop of ImageNet."""
    crop: Crop = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])
    return crop


def centre_crop(size: tuple[int, int]) -> Crop:
    """The middle, after the shorter side was scaled to size / CENTRE."""
    crop: Crop = v2.Compose([v2.Resize(round(max(size) / CENTRE), antialias=True), v2.CenterCrop(size)])
    return crop
