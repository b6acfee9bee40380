"""Float32 copies of weights that are stored in half, whole or as the 16 bits that bfloat16 lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from mpt.formats.stored import join_float32, split_float32


class Masters(Protocol):
    """The tensors that the optimizer updates, in the order of the working weights.

    `full` are the finest values that there are of each, `hold` has weights and masters take others, `stored` is all
    that then changes.
    """

    tensors: list[Tensor]

    def gather(self) -> None: ...

    def publish(self) -> None: ...

    def adopt(self, values: Mapping[str, Tensor]) -> None: ...

    def full(self) -> list[Tensor]: ...

    def hold(self, values: Sequence[Tensor]) -> None: ...

    def stored(self) -> list[Tensor]: ...

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

    def full(self) -> list[Tensor]:
        return self.tensors

    @torch.no_grad()
    def hold(self, values: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.tensors, list(values))

    def stored(self) -> list[Tensor]:
        return self.tensors

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

    def full(self) -> list[Tensor]:
        return self.tensors

    @torch.no_grad()
    def hold(self, values: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.tensors, list(values))
        self.publish()

    def stored(self) -> list[Tensor]:
        return [*self.tensors, *self._working]

    def state_dict(self) -> dict[str, Any]:
        return {"masters": dict(zip(self._names, self._copies, strict=True))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.adopt(state["masters"])
        self.publish()


class SplitMasters:
    """The low 16 bits of float32 masters whose high half is the bfloat16 weight itself; float32 weights have none.

    The optimizer joins the halves, updates, and splits again, so that nothing is left to gather or publish. A state
    holds the masters whole: a run with another kind of master goes on from it.
    """

    def __init__(self, names: list[str], weights: list[Parameter], full: Mapping[str, Tensor]) -> None:
        self.tensors: list[Tensor] = list(weights)
        self._names = names
        self.lows: list[Tensor | None] = [None] * len(names)
        with torch.no_grad():
            for i, (name, weight) in enumerate(zip(names, weights, strict=True)):
                if name in full:
                    self.lows[i] = torch.empty(weight.numel(), dtype=torch.int16, device=weight.device)
                    self._put(i, full[name])

    def gather(self) -> None:
        pass

    def publish(self) -> None:
        pass

    @torch.no_grad()
    def adopt(self, values: Mapping[str, Tensor]) -> None:
        for i, name in enumerate(self._names):
            if self.lows[i] is not None:
                self._put(i, values[name])

    def full(self) -> list[Tensor]:
        return [self._whole(i) for i in range(len(self.tensors))]

    @torch.no_grad()
    def hold(self, values: Sequence[Tensor]) -> None:
        for i, value in enumerate(values):
            if self.lows[i] is None:
                self.tensors[i].copy_(value)
            else:
                self._put(i, value)

    def stored(self) -> list[Tensor]:
        return [*self.tensors, *(low for low in self.lows if low is not None)]

    def state_dict(self) -> dict[str, Any]:
        return {"masters": {n: self._whole(i) for i, n in enumerate(self._names) if self.lows[i] is not None}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.adopt(state["masters"])

    def _put(self, i: int, value: Tensor) -> None:
        """Halves lie in the weight's order of memory."""
        weight, low = self.tensors[i], self.lows[i]
        assert low is not None
        alike = torch.empty_like(weight, dtype=torch.float32).copy_(value)
        high, bits = split_float32(alike.as_strided((low.numel(),), (1,)))
        weight.detach().as_strided((low.numel(),), (1,)).copy_(high)
        low.copy_(bits)

    def _whole(self, i: int) -> Tensor:
        weight, low = self.tensors[i].detach(), self.lows[i]
        if low is None:
            return weight
        whole = torch.empty_like(weight, dtype=torch.float32)
        whole.as_strided((low.numel(),), (1,)).copy_(join_float32(weight.as_strided((low.numel(),), (1,)), low))
        return whole
