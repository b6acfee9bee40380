"""A net of repeated blocks in which a forward pass leaves traces: statistics, counters, random draws of three kinds."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from mpt.recompute import recomputed


class Block(nn.Module):
    """Adds to its input what two convolutions make of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.2)
        self.second = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        inside: Tensor = self.second(self.drop(self.act(self.norm(self.first(x)))))
        return x + inside


class Drawing(Block):
    """Also draws from Python's and numpy's generators, and iterates its weight's largest singular value."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.second = spectral_norm(nn.Conv2d(width, width, 1))
        self.norm = nn.BatchNorm2d(width, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * random.uniform(0.9, 1.1) * float(np.random.uniform(0.9, 1.1)))


class InPlace(Block):
    """Changes what it was given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.relu_())


class Hungry(Block):
    """Runs out of memory where more than 8 samples are computed again, from the fourth time on."""

    again = 0

    def forward(self, x: Tensor) -> Tensor:
        Hungry.again += recomputed() is not None
        if recomputed() and Hungry.again > 3 and len(x) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(x)


def make(num_classes: int, width: int = 8, kind: str = "Block") -> nn.Module:
    block = {"Block": Block, "Drawing": Drawing, "InPlace": InPlace, "Hungry": Hungry}[kind]
    stem = nn.Conv2d(1, width, 3, padding=1)
    blocks = nn.Sequential(block(width), block(width))
    return nn.Sequential(stem, blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))
