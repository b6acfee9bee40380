"""Image files to crops of one size: the part is chosen first, so that no more is decoded than it needs."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mpt.data._boxes import TRIES, random_box, shrink_of, uniform
from mpt.data._decode import UNREADABLE, Colour, Part, decode_and_tell, format_of, format_of_name, size_of
from mpt.data._samples import Taken
from mpt.data._tree import Tree

# Evaluation cuts the middle 7/8 of the shorter side: the usual 224 of 256.
CENTRE = 0.875
# Files whose heads are read to tell what size images are; a tree is seldom of one size only.
LOOKED = 16


class FolderReader:
    """Crops of a tree's files. Shapes: H,W,C uint8 and 0-dim int64 labels.

    `augment`: random parts, mirrored half of the time, else the middle; `draft`: large JPEGs of random parts are
    decoded smaller where the part keeps at least twice the crop's size.
    """

    unreadable: tuple[type[Exception], ...] = UNREADABLE

    def __init__(
        self, tree: Tree, shape: tuple[int, int, int], background: Colour, *, augment: bool, draft: bool
    ) -> None:
        self._tree, self._channels, self._background = tree, shape[0], background
        self._size, self._augment, self._draft = (shape[1], shape[2]), augment, draft

    def __len__(self) -> int:
        return len(self._tree)

    def read(self, index: int, bits: np.random.Philox) -> Taken:
        """The crop that `bits` choose."""
        path = self._tree.path(index)
        if self._augment:
            crop, changed = self._random(path, uniform(bits, 2 * TRIES + 3))
        else:
            pixels, changed = decode_and_tell(path, self._channels, self._background)
            crop = centre_crop(pixels, self._size)
        return Taken(crop, torch.tensor(int(self._tree.labels[index])), changed)

    def name(self, index: int) -> str:
        """The file's path."""
        return self._tree.path(index)

    def look(self, index: int) -> tuple[str, ...]:
        """What is odd about the file but can be trained on, decoded in full."""
        path = self._tree.path(index)
        _, changed = decode_and_tell(path, self._channels, self._background)
        found, named = format_of(path), format_of_name(path)
        return changed if named in ("", found) else (*changed, f"{found} inside a file named {named}")

    def _random(self, path: str, draws: list[float]) -> tuple[Tensor, tuple[str, ...]]:
        """A random part at the crop's size, mirrored where the last draw says so."""

        def choose(height: int, width: int) -> Part:
            box = random_box(height, width, draws[:-1])
            return Part(box, shrink_of(box, self._size) if self._draft else 1)

        pixels, changed = decode_and_tell(path, self._channels, self._background, choose)
        crop = scaled(pixels, self._size)
        return (crop.flip(1) if draws[-1] < 0.5 else crop), changed


def enlarged(tree: Tree, side: int) -> list[str]:
    """A sentence where most of LOOKED files, evenly spread, are smaller than the `side` that they are brought to."""
    chosen = sorted({round(i) for i in np.linspace(0, len(tree) - 1, min(LOOKED, len(tree)))})
    sizes = [size for size in map(_size, map(tree.path, chosen)) if size is not None]
    small = [size for size in sizes if min(size) < side]
    if 2 * len(small) <= len(sizes):
        return []
    height, width = small[0]
    images = f"images of {'' if len(set(small)) == 1 else 'several sizes, e.g. '}{width}×{height} pixels"
    return [f"{images} are enlarged to {side}×{side}; data.image_size=N takes another size, where the model does"]


def _size(path: str) -> tuple[int, int] | None:
    """Height and width; None for what can't be read, which is told when it is its turn."""
    try:
        return size_of(path)
    except UNREADABLE:
        return None


def scaled(image: Tensor, size: tuple[int, int]) -> Tensor:
    """The image at `size` (height, width), bilinear, antialiased where it shrinks.

    Shapes: H,W,C uint8. The batch dimension comes first and channels last in memory, or torch takes a slower kernel
    and lays its result out planar.
    """
    if image.shape[:2] == size:
        return image
    batch = image.unsqueeze(0).permute(0, 3, 1, 2)
    return F.interpolate(batch, size=size, mode="bilinear", antialias=True).permute(0, 2, 3, 1)[0].contiguous()


def centre_crop(image: Tensor, size: tuple[int, int]) -> Tensor:
    """The middle, after the shorter side was scaled to size / CENTRE, as torchvision's Resize and CenterCrop do.

    Shapes: H,W,C uint8.
    """
    height, width = image.shape[:2]
    short = round(max(size) / CENTRE)
    if height <= width:
        image = scaled(image, (short, int(short * width / height)))
    else:
        image = scaled(image, (int(short * height / width), short))
    top, left = (round((have - want) / 2) for have, want in zip(image.shape[:2], size, strict=True))
    return image[top : top + size[0], left : left + size[1]].contiguous()
