"""Where a training crop lies: numbers only, drawn from one sample's random bits."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# torchvision's RandomResizedCrop, the usual training crop of ImageNet (Szegedy et al. 2014).
AREA = (0.08, 1.0)
LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))
TRIES = 10
# libjpeg decodes a JPEG at these fractions of its size for less: it leaves out coefficients of each 8×8 block.
SHRINKS = (8, 4, 2)
# Where twice the crop's size is left, the crop differs from that of a whole decode by 1 of 255 levels on average
# (docs/data.md); where the crop's size is left, by 4.
MARGIN = 2


class Box(NamedTuple):
    """A part of an image, in pixels from its upper left corner."""

    top: int
    left: int
    height: int
    width: int

    @property
    def rows(self) -> slice:
        return slice(self.top, self.top + self.height)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.left + self.width)


def uniform(bits: np.random.Philox, n: int) -> list[float]:
    """n numbers in [0, 1), from the upper 53 bits of each word, as numpy's `random` makes them."""
    found: list[float] = ((bits.random_raw(n) >> np.uint64(11)) * 2.0**-53).tolist()
    return found


def random_box(height: int, width: int, draws: list[float]) -> Box:
    """8-100 % of the area with an aspect of 3/4 to 4/3; the middle where ten tries do not fit.

    `draws` has an area and an aspect for each try, and the place (2).
    """
    *tries, down, right = draws
    for area, aspect in zip(tries[::2], tries[1::2], strict=True):
        pixels = height * width * _between(AREA, area)
        ratio = math.exp(_between(LOG_ASPECT, aspect))
        h, w = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if 0 < h <= height and 0 < w <= width:
            return Box(int(down * (height - h + 1)), int(right * (width - w + 1)), h, w)
    return _middle(height, width)


def _between(limits: tuple[float, float], share: float) -> float:
    return limits[0] + share * (limits[1] - limits[0])


def _middle(height: int, width: int) -> Box:
    """The largest part in the middle whose aspect is allowed."""
    low, high = (math.exp(x) for x in LOG_ASPECT)
    h, w = height, width
    if width / height < low:
        h = round(width / low)
    elif width / height > high:
        w = round(height * high)
    return Box((height - h) // 2, (width - w) // 2, h, w)


def shrink_of(box: Box, size: tuple[int, int]) -> int:
    """The largest divisor that leaves the box MARGIN times `size` (height, width) or more; 1 where none does."""
    most = min(box.height / size[0], box.width / size[1]) / MARGIN
    return next((n for n in SHRINKS if n <= most), 1)


def shrunk(box: Box, by: int) -> Box:
    """The box in an image that was decoded smaller by `by`, moved by less than `by` pixels to whole ones."""
    return Box(*(n // by for n in box))
