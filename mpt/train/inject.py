"""Faults put into a run on purpose (debug.inject): is what is detected, named, skipped and recovered what should be?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from mpt.build import Run
from mpt.config.schema import Injection
from mpt.errors import ConfigError, Problem
from mpt.registry import closest
from mpt.units import counted

FACTORS = {"spike": 2.0**10, "underflow": 2.0**-40}
"""What a tensor is multiplied by: 2^10 stands out in any run; 2^-40 takes float16 under its least number, 2^-24, from
any gradient below 2^16."""
POISON = {"inf": float("inf"), "nan": float("nan")}
"""What is added to one element, the first."""
_SHOWN = 5
"""Modules that are named where none is near the one asked for."""


class _Fault(torch.autograd.Function):
    """Output and gradient times a factor plus a poison in the first element: 1 and 0 where nothing is put in.

    Both are numbers on the device that the host sets before a step, so that a compiled graph is the same for all steps.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
        ctx.save_for_backward(backward)
        return _spoilt(x, forward)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _spoilt(grad, *ctx.saved_tensors), None, None


def _spoilt(x: Tensor, fault: Tensor) -> Tensor:
    """Shapes: `fault` is (factor, poison)."""
    factor, poison = fault.to(x.dtype).unbind()
    out = x * factor
    first = (0,) * x.dim()
    out[first] = torch.where(poison == 0, out[first], poison)
    return out


class Injector:
    """The faults of one run: hooks on the modules concerned, armed for the steps concerned."""

    def __init__(self, run: Run, faults: list[Injection]) -> None:
        self._faults = faults
        self._none = torch.tensor([1.0, 0.0], device=run.device)
        self._slots: dict[str, dict[str, Tensor]] = {}
        self._reached: set[tuple[str, str]] = set()
        self._watching = True
        self._armed = False
        for module in dict.fromkeys(f.module for f in faults):
            slots = self._slots[module] = {"forward": self._none.clone(), "backward": self._none.clone()}
            run.model.get_submodule(module).register_forward_hook(self._hook(module, slots))

    def _hook(self, name: str, slots: dict[str, Tensor]) -> Callable[..., Any]:
        def put_in(module: nn.Module, inputs: Any, output: Any) -> Any:
            leaves, shape = tree_flatten(output)
            for i, leaf in enumerate(leaves):
                if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel():
                    leaves[i] = _Fault.apply(leaf, slots["forward"], slots["backward"])
                    if self._watching:
                        self._watch(name, leaves[i])
                    break
            return tree_unflatten(leaves, shape)

        return put_in

    def _watch(self, name: str, output: Tensor) -> None:
        """Notes that a fault in the forward pass is seen, and one in the backward pass if a gradient comes."""
        self._reached.add((name, "forward"))
        if output.requires_grad:
            output.register_hook(lambda _: self._reached.add((name, "backward")))  # type: ignore[no-untyped-call]

    def require_reached(self) -> None:
        """After the dry pass. Raises: ConfigError for faults that nothing would see."""
        self._watching = False
        problems = []
        for i, fault in enumerate(self._faults):
            if (fault.module, "forward") not in self._reached:
                what = f"`{fault.module}` was not called in a forward pass, or gives no floating tensor"
                problems.append(Problem(f"debug.inject[{i}].module", what, "name a module that computes activations"))
            elif (fault.module, fault.where) not in self._reached:
                what = f"no gradient comes back to `{fault.module}`: nothing before it is trained, or nothing uses it"
                hint = "say where: forward, or name a module behind the first weights"
                problems.append(Problem(f"debug.inject[{i}].where", what, hint))
        if problems:
            raise ConfigError(*problems)

    def arm(self, step: int) -> list[Injection]:
        """The faults of attempt `step` are in place, and only these; gives them."""
        now = [f for f in self._faults if f.step <= step < f.step + f.steps]
        if self._armed:
            for slots in self._slots.values():
                for slot in slots.values():
                    slot.copy_(self._none)
        for fault in now:
            factor = FACTORS.get(fault.kind, 1.0) if fault.factor is None else fault.factor
            values = [factor, POISON.get(fault.kind, 0.0)]
            self._slots[fault.module][fault.where].copy_(torch.tensor(values))
        self._armed = bool(now)
        return now

    @contextmanager
    def again(self, step: int) -> Iterator[None]:
        """Inside, the faults of an earlier attempt are in place once more."""
        self.arm(step)
        try:
            yield
        finally:
            self.arm(0)


def injector(run: Run) -> Injector | None:
    """The run's faults, if it has any. Raises: ConfigError for modules that are not there, steps that do not come."""
    faults = run.cfg.debug.inject
    problems = list(_problems(run, faults))
    if problems:
        raise ConfigError(*problems)
    return Injector(run, faults) if faults else None


def _problems(run: Run, faults: list[Injection]) -> Iterator[Problem]:
    names = [name for name, _ in run.model.named_modules(remove_duplicate=False) if name]
    for i, fault in enumerate(faults):
        if fault.module not in names:
            near = " or ".join(f"`{n}`" for n in closest(fault.module, names))
            hint = f"did you mean {near}?" if near else f"there are {_first(names)}"
            yield Problem(f"debug.inject[{i}].module", f"got `{fault.module}`, which the model has not", hint)
        if fault.step > run.plan.length.steps:
            what = f"got {fault.step}, and the run has {counted(run.plan.length.steps, 'step')}"
            yield Problem(f"debug.inject[{i}].step", what, "give an earlier one, or raise trainer.max_steps")


def _first(names: list[str]) -> str:
    """Some modules by name, and where the others stand."""
    shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more: mpt plan shows them"
