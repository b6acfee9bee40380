"""What a format did not hold in a forward pass although the result looks well: overflow, whole numbers, a lost eps."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from mpt.formats.table import format_of
from mpt.precision.nested import tensors
from mpt.precision.owners import place
from mpt.precision.spoilt import deliberate, spoilt
from mpt.units import counted
from mpt.usercode import calling_line

_aten = torch.ops.aten
_CASTS = (_aten._to_copy, _aten.to)
_ADDS = (_aten.add, _aten.add_, _aten.sub, _aten.sub_)
_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_MOST = 1 << 16
"""Numbers of a tensor that is looked at for whole ones: positions are fewer, and telling them apart sorts."""


class Misfits:
    """Looks at the ops of one forward pass; `told` has a sentence for each line of code that lost something.

    Reads the device, but only of results in 16 bits.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], str] = {}
        self.product = ""
        """The emulated product whose result is rounded next."""

    @property
    def told(self) -> tuple[str, ...]:
        return tuple(self._told.values())

    def watch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, module: str | None) -> None:
        """Take the op with these arguments and this result into account."""
        half = [t for t in tensors(out) if t.dtype in _NAMES and t.numel() and t.layout is torch.strided]
        with _disable_current_modes() if half else nullcontext():  # others count what the pass holds
            for t in half:
                self._overflow(func, args, kwargs, t, module)
                self._whole(func, args, t, module)
                self._vanished(func, args, kwargs, t, module)
        if func.overloadpacket not in _CASTS:
            self.product = ""

    def _put(self, kind: str, module: str | None, what: str) -> None:
        line = calling_line()
        self._told.setdefault((kind, line or place(module, "")), f"{place(module, line)}: {what}")

    def _overflow(self, func: Any, args: Any, kwargs: Any, t: Tensor, module: str | None) -> None:
        """Upwards only: masks are written with numbers so far below zero that they overflow."""
        if t.dtype is not torch.float16 or not bool(t.isposinf().any()) or deliberate(func, args, kwargs):
            return
        if any(spoilt(a) for a in tensors((args, kwargs)) if a is not t):
            return
        op = self.product if self.product and func.overloadpacket in _CASTS else func.overloadpacket.__name__.strip("_")
        share = float(t.isinf().float().mean())
        keep = (
            f"precision.layers=[{{match: {module}, format: float32}}]" if module else "compute it on `.float()` numbers"
        )
        self._put(
            "overflow", module, f"`{op}` overflows float16 in {share:.1%} of its results: {keep}, or precision=bf16"
        )

    def _whole(self, func: Any, args: Any, t: Tensor, module: str | None) -> None:
        """Positions and counts that fall together."""
        if t.numel() > _MOST:
            return
        op = func.overloadpacket
        casts = op in _CASTS and args[0].dtype not in _NAMES and _whole_numbers(args[0], t.dtype)
        shifts = op in _ADDS and args[0] is not t and _whole_numbers(t, t.dtype)
        if not (op is _aten.arange or casts or shifts):
            return
        if casts and not args[0].is_floating_point():
            self._altered(args[0], t, module)
            return
        before = t.numel() if op is _aten.arange else _different(args[0])
        after = _different(t)
        if after < before:
            exact = _exact(t.dtype)
            what = (
                f"{before:,} whole numbers are {after:,} in {_NAMES[t.dtype]}, which has all of them to {exact:,} only"
            )
            self._put("whole", module, f"{what}: keep positions and counts in float32 or integers")

    def _altered(self, given: Tensor, t: Tensor, module: str | None) -> None:
        """Integers that are others in the format."""
        wrong = given != t.to(given.dtype)
        if bool(wrong.any()):
            one, other = given[wrong][0].item(), t[wrong][0].item()
            name, exact = _NAMES[t.dtype], _exact(t.dtype)
            what = f"{one:,} becomes {other:,.0f} in {name}, which has all whole numbers to {exact:,} only"
            self._put("whole", module, f"{what}: keep positions and counts in float32 or integers")

    def _vanished(self, func: Any, args: Any, kwargs: Any, t: Tensor, module: str | None) -> None:
        """A number that is added and is 0 in the format, or too small beside what has been counted."""
        if func.overloadpacket not in _ADDS or len(args) < 2 or not isinstance(args[1], int | float) or not args[1]:
            return
        row, name = format_of(_NAMES[t.dtype]), _NAMES[t.dtype]
        if abs(args[1]) <= row.min_subnormal / 2:
            what = f"{args[1]:g} is 0 in {name}, whose smallest number is {row.min_subnormal:.2g}: give a larger eps"
            self._put("eps", module, what)
        elif args[1] == round(args[1]) and bool((t.abs() >= abs(args[1]) * _exact(t.dtype)).all()):
            at = float(t.abs().min())
            what = f"adding {args[1]:g} changes nothing at {at:g} in {name}: count in float32 or integers"
            self._put("count", module, what)


def _different(t: Tensor) -> int:
    return int(t.unique().numel())  # type: ignore[no-untyped-call]


def _exact(dtype: torch.dtype) -> int:
    """All whole numbers up to it are numbers of the format."""
    return int(1 / format_of(_NAMES[dtype]).unit_roundoff)


def _whole_numbers(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether all are whole and some lie beyond those that the format holds exactly."""
    if x.is_complex() or x.dtype is torch.bool:
        return False
    return bool((x.abs() > _exact(dtype)).any()) and bool((x == x.round()).all() if x.is_floating_point() else True)


def shown(told: tuple[str, ...], most: int = 3) -> list[str]:
    """For the terminal; the audit has them all."""
    more = [f"… and {counted(len(told) - most, 'more line')} like it, in audit.json"] if len(told) > most else []
    return [*told[:most], *more]
