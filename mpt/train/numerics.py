"""What the tensors of a run look like at some of its steps, without a change to its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mpt.build import Run
from mpt.record.numerics import ACTIVATIONS, GRADIENTS, OUTPUT_GRADIENTS, WEIGHTS
from mpt.telemetry.history import read
from mpt.telemetry.tally import Tally
from mpt.train.again import no_trace
from mpt.train.buffers import Buffers
from mpt.train.norm import norms
from mpt.train.rounded import RoundedProducts
from mpt.train.step import Window
from mpt.types import Batch, StepRow, Unmeasured

LEAST_EVERY = 50
MOST_LOOKS = 200
"""Of a run: what they take on disk stays small however long it is."""

SAMPLE = 4096
"""Elements of a tensor whose exponents `light` counts: a share is good to 1 / 64."""


class Observer(Protocol):
    """Looks at the tensors of some steps."""

    def watch(self, step: int, window: Window) -> Window: ...

    def rows(self, steps: Sequence[StepRow]) -> list[dict[str, Any]]: ...


class NoNumerics:
    """Looks at nothing."""

    def watch(self, step: int, window: Window) -> Window:
        return window

    def rows(self, steps: Sequence[StepRow]) -> list[dict[str, Any]]:
        return []


def observer(run: Run, buffers: Buffers) -> Observer:
    """What `numerics` asks for."""
    return NoNumerics() if run.cfg.numerics == "off" else Numerics(run, buffers)


@dataclass
class _Look:
    """What one step left on the device. `first_norm`: of the gradient of the first micro-batch alone, scaled."""

    step: int
    tally: Tally
    micro: int
    first_norm: Tensor | None = None
    first_samples: int = 0
    products: RoundedProducts | None = None


class Numerics:
    """Looks at one step in `numerics_every`; hooks are there at such steps only, and read nothing on the host.

    Activations, their gradients and products are those of the first micro-batch, gradients of weights those of the
    whole update, as the backward pass left them: scaled. A compiled model is looked at by one more forward pass,
    eagerly, whose trace in buffers and random states is undone.
    """

    def __init__(self, run: Run, buffers: Buffers) -> None:
        cfg = run.cfg
        self._run, self._buffers = run, buffers
        self._every = cfg.numerics_every or max(LEAST_EVERY, -(-run.plan.length.steps // MOST_LOOKS))
        self._full = cfg.numerics == "full"
        self._compiled = cfg.trainer.compile
        self._modules = [(n, m) for n, m in run.model.named_modules() if _looked_at(m)]
        self._pending: list[_Look] = []

    def watch(self, step: int, window: Window) -> Window:
        """The window of attempt `step`, which takes its statistics as it is gone through if they are due."""
        if step != 1 and step % self._every:
            return window
        self._pending = [look for look in self._pending if look.step != step]  # an attempt that ran out of memory
        look = _Look(step, Tally(None if self._full else SAMPLE), len(window))
        self._pending.append(look)
        return _Watched(self, look, window)

    def rows(self, steps: Sequence[StepRow]) -> list[dict[str, Any]]:
        """Lines of numerics.jsonl of those looks whose steps are known now; reads the device."""
        by_step = {row.step: row for row in steps}
        ready = [look for look in self._pending if look.step in by_step]
        self._pending = [look for look in self._pending if look.step not in by_step]
        return [{**self._unmeasured(), **_row(look, by_step[look.step])} for look in ready]

    def first(self, look: _Look, batch: Batch, hooks: ExitStack) -> None:
        """Before the first micro-batch."""
        look.first_samples = len(batch.targets)
        if self._full:
            look.products = RoundedProducts(self._run.model)
            for name, weight in zip(self._run.policy.names, self._run.policy.weights, strict=True):
                look.tally.add(WEIGHTS, name, weight)
        inner = hooks.enter_context(ExitStack())
        for name, module in self._modules:
            inner.enter_context(_removed(module.register_forward_hook(_Hook(look, name, self._full))))
        inner.enter_context(_removed(self._run.model.register_forward_hook(lambda *_: inner.close())))
        if self._compiled:
            self._eagerly(batch, inner)

    def after_first(self, look: _Look) -> None:
        """After the first micro-batch's backward pass."""
        if look.products is not None:
            look.products.measure()
        if look.micro > 1:
            grads = [w.grad for w in self._run.policy.weights if w.grad is not None]
            with torch.no_grad():
                look.first_norm = norms(grads)[0]

    def last(self, look: _Look) -> None:
        """After the last backward pass, before anything is done with the gradients."""
        for name, weight in zip(self._run.policy.names, self._run.policy.weights, strict=True):
            if weight.grad is not None:
                look.tally.add(GRADIENTS, name, weight.grad)

    def _unmeasured(self) -> dict[str, Unmeasured]:
        """What this run can't be asked for, with the reason."""
        if not (self._full and self._compiled):
            return {}
        return {OUTPUT_GRADIENTS: Unmeasured("the model is compiled: its inner gradients can't be seen")}

    def _eagerly(self, batch: Batch, hooks: ExitStack) -> None:
        """A forward pass of the model itself, which leaves no trace but what its hooks see."""
        with no_trace(self._run, self._buffers), torch.no_grad(), self._run.policy.forward():
            self._run.model(batch.inputs.clone())
        hooks.close()


class _Watched:
    """A window that tells `numerics` how far it has been gone through."""

    def __init__(self, numerics: Numerics, look: _Look, window: Window) -> None:
        self._numerics, self._look, self._window = numerics, look, window

    def __len__(self) -> int:
        return len(self._window)

    def __iter__(self) -> Iterator[Batch]:
        with ExitStack() as hooks:
            for i, batch in enumerate(self._window):
                if i == 0:
                    self._numerics.first(self._look, batch, hooks)
                elif i == 1:
                    self._numerics.after_first(self._look)
                yield batch
            if len(self) == 1:
                self._numerics.after_first(self._look)
        self._numerics.last(self._look)


class _Hook:
    """Counts a module's output and, with `full`, the gradient that comes back to it, and keeps some of its input."""

    def __init__(self, look: _Look, name: str, full: bool) -> None:
        self._look, self._name, self._full = look, name, full

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        for tensor in _floating(output):
            self._look.tally.add(ACTIVATIONS, self._name, tensor)
            if self._full and tensor.requires_grad:
                tensor.register_hook(self._grad)  # type: ignore[no-untyped-call]
        if self._look.products is not None:
            self._look.products.keep(self._name, module, inputs)

    def _grad(self, grad: Tensor) -> None:
        self._look.tally.add(OUTPUT_GRADIENTS, self._name, grad)


class _removed:
    """A hook's handle as a context: the hook is gone after it."""

    def __init__(self, handle: torch.utils.hooks.RemovableHandle) -> None:
        self._handle = handle

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._handle.remove()


def _looked_at(module: nn.Module) -> bool:
    """Modules without children, and those with weights of their own."""
    return not any(True for _ in module.children()) or any(True for _ in module.parameters(recurse=False))


def _floating(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor) and t.is_floating_point() and t.numel()]


def _row(look: _Look, row: StepRow) -> dict[str, Any]:
    more = {} if look.products is None else {"sqnr_db": look.products.read()}
    return {
        "step": row.step,
        "update": row.update,
        "applied": row.applied,
        "scale": row.scale,
        "noise": _noise(look, row),
        **look.tally.read(),
        **more,
    }


def _noise(look: _Look, row: StepRow) -> dict[str, float] | Unmeasured:
    """Squared norms of the gradient of one micro-batch and of all, unscaled: what the noise scale is made of."""
    if look.first_norm is None:
        return Unmeasured("one micro-batch in an update: trainer.accumulate=2 or more compares them")
    if not row.applied:
        return Unmeasured("the step was skipped")
    norm = read(look.first_norm)[0] * look.micro / row.scale
    if not math.isfinite(norm):
        return Unmeasured("the first micro-batch's gradient is not finite")
    return {"small_sq": norm**2, "big_sq": row.grad_norm**2, "small": look.first_samples, "big": row.samples}
