"""The op policy made so: kernels at torch's autocast dispatch keys, where a device's own list differs from ours.

They are reached only while autocast is on for that device; at other times they cost nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet, _ExcludeDispatchKeyGuard

from mpt.errors import PrecisionError, Problem
from mpt.precision.ops import FOLLOW, GEMM, KINDS, PROMOTE, REFUSED

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "mps": "AutocastMPS"}
_HALF = (torch.float16, torch.bfloat16)
_installed: dict[str, tuple[frozenset[str], torch.library.Library]] = {}

_OVERRIDING = r"Warning only once for all operators,[\s\S]*Overriding a previously registered kernel"
"""torch before 2.12 says so of the first, though it was asked for."""

_Kernel = Callable[..., Any]


def install_kernels(device: str, keep: Iterable[str]) -> None:
    """Make autocast on that device type follow the op policy, with the kinds in `keep` in float32.

    Registers only what torch's own list lacks or does otherwise; the same `keep` again changes nothing.
    """
    wanted = frozenset(keep)
    if device in _installed and _installed[device][0] == wanted:
        return
    remove_kernels(device)
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_OVERRIDING)
        for op, kernel in _differences(device, wanted):
            library.impl(op, kernel, _KEYS[device], allow_override=True)  # type: ignore[no-untyped-call]
    _installed[device] = (wanted, library)


def remove_kernels(device: str) -> None:
    """Give autocast on that device type its own lists back."""
    if device in _installed:
        _installed.pop(device)[1]._destroy()  # type: ignore[no-untyped-call]


def _differences(device: str, keep: frozenset[str]) -> Iterable[tuple[Any, _Kernel]]:
    """Ops of the policy that torch's autocast treats otherwise on that device, each with the kernel it needs."""
    key = _KEYS[device]
    exclude = DispatchKeySet(getattr(DispatchKey, key))
    for kind, names in KINDS.items():
        make = _in_float32 if kind in keep else _as_given
        yield from ((op, make(op, exclude)) for op in _ops(names) if _listed(op, key) != (kind in keep))
    yield from ((op, _in_compute(op, exclude, device)) for op in _ops(GEMM) if not _listed(op, key))
    yield from ((op, _in_widest(op, exclude)) for op in _ops(PROMOTE) if not _listed(op, key))
    yield from ((op, _there_and_back(op, exclude)) for op in _ops(FOLLOW) if _listed(op, key))
    yield from ((op, _refuse(name, hint)) for name, hint in REFUSED.items() for op in _ops([name]))


def _ops(names: Iterable[str]) -> Iterable[Any]:
    """The overloads of that name, leaving out what this torch does not have."""
    for name in names:
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        if packet is not None and (overload or "default") in packet.overloads():
            yield getattr(packet, overload or "default")


def _listed(op: Any, key: str) -> bool:
    """Whether torch itself has a kernel for op at that key; all such kernels of KINDS cast to float32."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def _in_float32(op: Any, exclude: DispatchKeySet) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _ExcludeDispatchKeyGuard(exclude):
            named = {k: _cast(a, torch.float32) for k, a in kwargs.items()}
            return op(*[_cast(a, torch.float32) for a in args], **named)

    return kernel


def _in_compute(op: Any, exclude: DispatchKeySet, device: str) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with _ExcludeDispatchKeyGuard(exclude):
            return op(*[_cast(a, dtype, (torch.float32, *_HALF)) for a in args], **kwargs)

    return kernel


def _in_widest(op: Any, exclude: DispatchKeySet) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _ExcludeDispatchKeyGuard(exclude):
            if any(t.dtype == torch.float32 for t in _tensors(args)):
                args = tuple(_cast(a, torch.float32) for a in args)
            return op(*args, **kwargs)

    return kernel


def _there_and_back(op: Any, exclude: DispatchKeySet) -> _Kernel:
    """Through float32, for which there is a kernel everywhere, to the format of the first operand."""

    def kernel(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        with _ExcludeDispatchKeyGuard(exclude):
            out = op(_cast(x, torch.float32), *[_cast(a, torch.float32) for a in args], **kwargs)
            if isinstance(out, Tensor):
                return out.to(x.dtype)
            return tuple(o.to(x.dtype) if o.is_floating_point() else o for o in out)

    return kernel


def _as_given(op: Any, exclude: DispatchKeySet) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _ExcludeDispatchKeyGuard(exclude):
            return op(*args, **kwargs)

    return kernel


def _refuse(name: str, hint: str) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise PrecisionError(Problem(name, "is unsafe in half precision, on every device alike", hint))

    return kernel


def _cast(value: Any, dtype: torch.dtype, eligible: tuple[torch.dtype, ...] = _HALF) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype in eligible else value
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
        return [_cast(v, dtype, eligible) for v in value]
    return value


def _tensors(args: tuple[Any, ...]) -> Iterable[Tensor]:
    for a in args:
        if isinstance(a, Tensor):
            yield a
        elif isinstance(a, (list, tuple)):
            yield from (t for t in a if isinstance(t, Tensor))
