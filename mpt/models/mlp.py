"""Linear layers with ReLU over flattened images."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from torch import nn

from mpt.config.options import merged
from mpt.models._options import require_fraction, require_kind, require_positive
from mpt.types import DataSpec, InputSpec

CONVOLUTIONAL = False
DEFAULTS = {"width": 256, "depth": 2, "dropout": 0.0}


def input_spec(options: Mapping[str, Any]) -> InputSpec:
    """Images of any shape."""
    return InputSpec("images")


def build(options: Mapping[str, Any], data: DataSpec) -> nn.Module:
    """`depth` hidden layers of `width`, then a linear head.

    Raises: ConfigError for unknown options; ModelError for data that are not images.
    """
    o = merged("model", options, DEFAULTS)
    require_positive(o, "width", "depth")
    require_fraction(o, "dropout")
    require_kind("mlp", data, "images")
    layers: list[nn.Module] = [nn.Flatten()]
    features = prod(data.shape)
    for _ in range(o["depth"]):
        layers += [nn.Linear(features, o["width"]), nn.ReLU()]
        if o["dropout"]:
            layers.append(nn.Dropout(o["dropout"]))
        features = o["width"]
    return nn.Sequential(*layers, nn.Linear(features, data.num_classes))
