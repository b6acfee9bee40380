"""Low-bit layers put into a model: the forward of each linear and convolution that takes part is replaced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.formats.operand import Gemms
from mpt.precision.emulate import Emulation
from mpt.precision.low.amax import AmaxHistory
from mpt.precision.low.conv import LowConv, Window
from mpt.precision.low.linear import LowLinear
from mpt.precision.low.operands import Layer


class LowLayers:
    """The low-bit layers of one model; they act where autocast is on, and are plain layers elsewhere.

    The new forward is an attribute of the instance: names of parameters and of the state dict stay as they are.
    `native` are forwards of those that the device multiplies itself; `emulated` tells whether there are others.
    """

    def __init__(
        self,
        model: nn.Module,
        gemms: Mapping[str, Gemms],
        compute: torch.dtype,
        history: int,
        native: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> None:
        modules, native = dict(model.named_modules()), native or {}
        self.emulated = set(gemms) > set(native)
        delayed = any(op.scale == "delayed" for g in gemms.values() for op in g.operands())
        self._amax: AmaxHistory | None = None
        if delayed:
            device = next(model.parameters()).device
            self._amax = AmaxHistory(list(gemms), history, device)
        self.layers = [Layer(products, compute, i, self._amax) for i, products in enumerate(gemms.values())]
        for name, layer in zip(gemms, self.layers, strict=True):
            low = _on_device(native[name]) if name in native else _emulated(modules[name], layer)
            _replace(modules[name], compute, low)

    def turn(self) -> None:
        """An update has all its gradients."""
        if self._amax is not None:
            self._amax.turn()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._amax is None else {"amax": self._amax.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Whether all scales go on where they were."""
        return self._amax is None or ("amax" in state and self._amax.load_state_dict(state["amax"]))


_Low = Callable[[Tensor, bool], Tensor]


def _replace(module: nn.Module, compute: torch.dtype, low: _Low) -> None:
    plain: Callable[[Tensor], Tensor] = module.forward

    @functools.wraps(plain)
    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = x.device.type
        if not torch.is_autocast_enabled(device):
            return plain(x, *args, **kwargs)
        # A pass that is only watched, or that trains nothing, leaves no trace in the scales.
        record = torch.is_grad_enabled() and not Emulation.watchers
        with torch.autocast(device, enabled=False):
            return low(x.to(compute), record)

    module.forward = forward


def _on_device(native: Callable[[Tensor], Tensor]) -> _Low:
    return lambda x, record: native(x)


def _emulated(module: nn.Module, layer: Layer) -> _Low:
    return _linear(module, layer) if isinstance(module, nn.Linear) else _conv(module, layer)


def _linear(module: nn.Linear, layer: Layer) -> _Low:
    def low(x: Tensor, record: bool) -> Tensor:
        out: Tensor = LowLinear.apply(x, module.weight, module.bias, layer, record)
        return out

    return low


def _conv(module: nn.Module, layer: Layer) -> _Low:
    assert isinstance(module, nn.modules.conv._ConvNd)
    padding = _padding(module)
    zeros = module.padding_mode == "zeros"
    window = Window(module.stride, padding if zeros else (0,) * len(padding), module.dilation)
    around = [p for side in reversed(padding) for p in (side, side)]

    def low(x: Tensor, record: bool) -> Tensor:
        x = x if zeros else F.pad(x, around, mode=module.padding_mode)
        single = x.dim() == len(padding) + 1  # an image without a batch
        x = x.unsqueeze(0) if single else x
        out: Tensor = LowConv.apply(x, module.weight, module.bias, layer, window, record)
        return out.squeeze(0) if single else out

    return low


def _padding(module: nn.modules.conv._ConvNd) -> tuple[int, ...]:
    if module.padding == "same":
        return tuple(d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True))
    if isinstance(module.padding, str):
        return (0,) * len(module.kernel_size)
    return module.padding
