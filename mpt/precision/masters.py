"""Float32 copies of weights that are stored in half: what the optimizer updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter


class Masters(Protocol):
    """The tensors that the optimizer updates, in the order of the working weights."""

    tensors: list[Tensor]

    def gather(self) -> None: ...

    def publish(self) -> None: ...

    def adopt(self, values: Mapping[str, Tensor]) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class SameWeights:
    """No copies: the optimizer updates the working weights themselves, and every call is free."""

    def __init__(self, weights: list[Parameter]) -> None:
        self.tensors: list[Tensor] = list(weights)

    def gather(self) -> None:
        pass

    def publish(self) -> None:
        pass

    def adopt(self, values: Mapping[str, Tensor]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class MasterCopies:
    """Float32 masters of half weights; float32 weights (norms, kept layers) stand for themselves.

    Made from the float32 values that the weights had before they were stored in half.
    """

    def __init__(self, names: list[str], weights: list[Parameter], full: Mapping[str, Tensor]) -> None:
        self.tensors = [full.get(n, w) for n, w in zip(names, weights, strict=True)]
        self._names = [n for n in names if n in full]
        self._working: list[Tensor] = [w for n, w in zip(names, weights, strict=True) if n in full]
        self._copies = [full[n] for n in self._names]

    def gather(self) -> None:
        """Working gradients become the masters' float32 gradients, added to what is there, and are freed."""
        fresh: list[tuple[Tensor, Tensor]] = []
        for copy, weight in zip(self._copies, self._working, strict=True):
            if weight.grad is not None and copy.grad is not None:
                copy.grad += weight.grad
            elif weight.grad is not None:
                fresh.append((copy, weight.grad))
            weight.grad = None
        if fresh:
            grads = [torch.empty_like(copy) for copy, _ in fresh]
            torch._foreach_copy_(grads, [grad for _, grad in fresh])
            for (copy, _), grad in zip(fresh, grads, strict=True):
                copy.grad = grad

    @torch.no_grad()
    def publish(self) -> None:
        """Working weights become the masters' values, rounded to their format."""
        torch._foreach_copy_(self._working, self._copies)

    @torch.no_grad()
    def adopt(self, values: Mapping[str, Tensor]) -> None:
        """Masters take the values of that name, in whatever format they come."""
        for name, copy in zip(self._names, self._copies, strict=True):
            copy.copy_(values[name])

    def state_dict(self) -> dict[str, Any]:
        return {"masters": dict(zip(self._names, self._copies, strict=True))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.adopt(state["masters"])
        self.publish()
