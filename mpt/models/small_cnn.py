"""Three convolutions with batch norm, for images from 8×8 pixels: trains in seconds on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from mpt.config.options import merged
from mpt.models._options import require_fraction, require_kind, require_positive
from mpt.types import DataSpec, InputSpec

CONVOLUTIONAL = True
DEFAULTS = {"width": 32, "dropout": 0.1}


def input_spec(options: Mapping[str, Any]) -> InputSpec:
    """Images of any channels, 4 pixels or more: two poolings halve them."""
    return InputSpec("images", min_size=4)


def build(options: Mapping[str, Any], data: DataSpec) -> nn.Module:
    """A sequence that ends in a linear head on the mean over pixels.

    Raises: ConfigError for unknown options; ModelError for data that are not images.
    """
    o = merged("model", options, DEFAULTS)
    require_positive(o, "width")
    require_fraction(o, "dropout")
    require_kind("small_cnn", data, "images")
    width = o["width"]
    return nn.Sequential(
        *_stage(data.shape[0], width),
        *_stage(width, 2 * width),
        nn.MaxPool2d(2),
        *_stage(2 * width, 2 * width),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(o["dropout"]),
        nn.Linear(2 * width, data.num_classes),
    )


def _stage(channels: int, width: int) -> list[nn.Module]:
    # The norm's own shift makes a bias of the convolution void.
    return [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
