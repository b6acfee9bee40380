"""A model as a user would write it."""

from __future__ import annotations

from torch import nn

from mpt.types import DataSpec


def make(num_classes: int, data: DataSpec, hidden: int = 8) -> nn.Module:
    features = data.shape[0] * data.shape[1] * data.shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, num_classes))
