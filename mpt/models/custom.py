"""The user's own callable that returns a torch module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    _require_trainable(model, o["path"])
    _require_float32(model, o["path"])
    return model


def _require_trainable(model: nn.Module, path: str) -> None:
    """Raises: ModelError for what can be seen before a run to fit no training in any format."""
    if isinstance(model, torch.jit.ScriptModule):
        what = f"`{path}` is a TorchScript module, whose formats can't be chosen"
        raise ModelError(Problem(KEY, what, "return the plain torch.nn.Module; trainer.compile=true compiles it"))
    for inner, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"`{path}` has `{inner}`, a TorchScript module, whose formats can't be chosen"
            raise ModelError(Problem(KEY, what, "use the plain torch.nn.Module; trainer.compile=true compiles it"))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        for odd, what, hint in _ODD:
            if odd(tensor):
                raise ModelError(Problem(KEY, f"`{path}` has `{name}` {what}", hint))


_ODD: tuple[tuple[Callable[[torch.Tensor], bool], str, str], ...] = (
    (
        nn.parameter.is_lazy,
        "without a shape: it belongs to a lazy module",
        "give the sizes (nn.Linear for nn.LazyLinear), or run one batch of zeros through it before returning it",
    ),
    (
        lambda t: t.is_meta and torch.get_default_device().type != "meta",  # a plan builds there on purpose
        "on the meta device, which holds no numbers",
        "build it on the CPU, or fill model.to_empty(device='cpu') with initial weights",
    ),
    (
        lambda t: t.is_complex() and t.requires_grad,
        "in complex numbers, which half precision and loss scaling don't know",
        "keep a float32 parameter with a last side of 2, and use torch.view_as_complex in forward",
    ),
)
"""What a parameter or buffer may not be: a test, words, and a next move."""


def _require_float32(model: nn.Module, path: str) -> None:
    odd = [(n, p.dtype) for n, p in model.named_parameters() if p.is_floating_point() and p.dtype != torch.float32]
    if odd:
        what = f"`{path}` has `{odd[0][0]}` in {odd[0][1]}; weights must come in float32"
        raise ModelError(Problem(KEY, what, "leave number formats to precision="))
