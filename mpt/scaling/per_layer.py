"""A power of two for each layer's backward, over a dynamic scale for all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.config.schema import ScalingConfig
from mpt.scaling.dynamic import DynamicScaling, rule

_TOP = 15
"""floor(log2) of float16's largest number."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float32, exactly: its bits. Shapes: any int32 in -126 … 127."""
    return ((exponent + 127) << 23).view(torch.float32)


class _Rescaled(torch.autograd.Function):
    """The identity whose gradient is multiplied by `factor`; the largest magnitude on the side that is scaled is
    added to the gradient of `meter`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, meter: Tensor, entering: bool) -> Tensor:
        ctx.save_for_backward(factor)
        ctx.entering = entering
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, None]:
        (factor,) = ctx.saved_tensors
        out = grad * factor
        scaled = out if ctx.entering else grad
        largest = torch.linalg.vector_norm(scaled, float("inf")) if scaled.numel() else scaled.new_zeros(())
        return out, None, largest.float(), None


class PerLayerScaling(DynamicScaling):
    """`scale` is that of the gradients between layers; layer i computes its backward at scale · 2^exponents[i].

    What enters a layer's backward is multiplied by its power of two, what leaves it (the gradients of its input and of
    its weights, these in float32) divided by it: exact but where a format ends. After a finite step each power is such
    that the sum of the largest numbers inside lies `headroom_bits` below float16's largest: it falls at once and
    rises by 1 at a time. After an overflow it falls by 1 in layers that saw it, and `scale` does as in `dynamic`.
    Layers are plain nn.Linear and nn.Conv1d/2d/3d; all others work at `scale`.
    Source: the idea is that of Zhao et al. 2019, Adaptive Loss Scaling (arXiv:1910.12385), there with one chain of
    scales through the network.
    """

    def __init__(self, *, headroom_bits: int, max_exponent: int, device: torch.device, **dynamic: Any) -> None:
        super().__init__(**dynamic, device=device)
        self._wanted_bits, self._limit = _TOP - headroom_bits, max_exponent
        self._device = device
        self._names: list[str] = []
        self.exponents = torch.zeros(0, dtype=torch.int32, device=device)
        self._factors = torch.ones(0, device=device)
        self._inverses = torch.ones(0, device=device)

    def attach(self, model: nn.Module) -> None:
        """The forward of each layer becomes one that rescales its gradients at its borders."""
        layers = {n: run for n, m in model.named_modules() if (run := _weighted(m)) and m.weight.requires_grad}
        self._names = list(layers)
        self.exponents = torch.zeros(len(layers), dtype=torch.int32, device=self._device)
        self._factors, self._inverses = torch.ones(2, len(layers), device=self._device)
        self.leaves = [torch.zeros((), device=self._device, requires_grad=True) for _ in layers]
        for i, (name, run) in enumerate(layers.items()):
            module = model.get_submodule(name)
            module.forward = self._bordered(module, run, self._factors[i], self._inverses[i], self.leaves[i])

    @staticmethod
    def _bordered(
        module: nn.Module, run: Callable[..., Tensor], factor: Tensor, inverse: Tensor, meter: Tensor
    ) -> Callable[[Tensor], Tensor]:
        @functools.wraps(module.forward)
        def forward(input: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                return run(module, input, module.weight, module.bias)
            inner = [
                x if x is None or not x.requires_grad else _Rescaled.apply(x, inverse, meter, False)
                for x in (input, module.weight, module.bias)
            ]
            out: Tensor = _Rescaled.apply(run(module, *inner), factor, meter, True)
            return out

        return forward

    def update(self, found: Tensor, largest: Tensor | None = None) -> None:
        super().update(found)
        seen = [leaf.grad for leaf in self.leaves]
        if not any(g is not None for g in seen):
            return
        inside = torch.stack([torch.zeros_like(x) if g is None else g for x, g in zip(self.leaves, seen, strict=True)])
        self.exponents.copy_(self._moved(found.bool(), inside.detach()).clamp(-self._limit, self._limit))
        self._factors.copy_(power_of_two(self.exponents))
        self._inverses.copy_(power_of_two(-self.exponents))

    def _moved(self, overflow: Tensor, inside: Tensor) -> Tensor:
        """The next exponents; a layer in which nothing but 0 was seen stays."""
        bits = torch.frexp(inside).exponent - 1  # floor(log2), from the bits
        wanted = torch.minimum(self.exponents + self._wanted_bits - bits, self.exponents + 1)
        after = torch.where(overflow, self.exponents, wanted)
        after = torch.where(inside > 0, after, self.exponents)
        return torch.where(inside.isfinite(), after, self.exponents - 1)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "exponents": self.exponents}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._factors.copy_(power_of_two(self.exponents))
        self._inverses.copy_(power_of_two(-self.exponents))

    def facts(self) -> dict[str, object]:
        return {"layer_exponents": dict(zip(self._names, self.exponents.tolist(), strict=True))}


def _weighted(module: nn.Module) -> Callable[..., Tensor] | None:
    """What a plain layer computes from (module, input, weight, bias); None for other modules and for layers whose
    forward is the user's own."""
    if type(module).forward is nn.Linear.forward:
        return lambda m, x, weight, bias: F.linear(x, weight, bias)
    if any(type(module).forward is c.forward for c in _CONVOLUTIONS):
        return lambda m, x, weight, bias: m._conv_forward(x, weight, bias)
    return None


def build(cfg: ScalingConfig, device: torch.device) -> PerLayerScaling:
    """A scale for each layer by cfg, whose values conf/scaling/per_layer.yaml gives."""
    return PerLayerScaling(**rule(cfg), **cfg.options, device=device)
