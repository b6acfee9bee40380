"""The user's own callable that returns a torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mpt.config.options import merged
from mpt.errors import ModelError, Problem
from mpt.types import DataSpec, InputSpec
from mpt.usercode import call, load_callable

# Unknown: trainer.channels_last=true says so where it is one.
CONVOLUTIONAL = False
DEFAULTS: dict[str, Any] = {"path": None, "kwargs": {}}
KEY = "model.path"


def input_spec(options: Mapping[str, Any]) -> InputSpec:
    """Images as the data have them (data.image_size chooses), or windows of `kwargs.context` tokens."""
    return InputSpec(None, context=merged("model", options, DEFAULTS)["kwargs"].get("context"))


def build(options: Mapping[str, Any], data: DataSpec) -> nn.Module:
    """What the callable returns for `kwargs`, with `num_classes` and `data` (a DataSpec) where it takes them.

    Raises: ConfigError when there is no such callable or it fails; ModelError when it returns no float32 module.
    """
    o = merged("model", options, DEFAULTS)
    if not o["path"]:
        raise ModelError(Problem(KEY, "is not set", "give `pkg.module:callable` or `file.py:callable`"))
    function = load_callable(o["path"], KEY)
    model = call(function, o["path"], KEY, o["kwargs"], num_classes=data.num_classes, data=data)
    if not isinstance(model, nn.Module):
        what = f"`{o['path']}` returned a {type(model).__name__}, not a torch.nn.Module"
        raise ModelError(Problem(KEY, what))
    _require_float32(model, o["path"])
    return model


def _require_float32(model: nn.Module, path: str) -> None:
    odd = [(n, p.dtype) for n, p in model.named_parameters() if p.is_floating_point() and p.dtype != torch.float32]
    if odd:
        what = f"`{path}` has `{odd[0][0]}` in {odd[0][1]}; weights must come in float32"
        raise ModelError(Problem(KEY, what, "leave number formats to precision="))
