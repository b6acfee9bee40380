"""Emulation of a compute format: matmul and convolution in float32, rounded where the real thing rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from mpt.dispatch import Mode
from mpt.formats.rounding import round_tfloat32, storage_dtype
from mpt.precision.switches import eagerly

_aten = torch.ops.aten

GEMMS: dict[Any, tuple[int, ...]] = {
    _aten.mm.default: (0, 1),
    _aten.bmm.default: (0, 1),
    _aten.mv.default: (0, 1),
    _aten.dot.default: (0, 1),
    _aten.vdot.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten._addmm_activation.default: (1, 2),
    _aten.addbmm.default: (1, 2),
    _aten.baddbmm.default: (1, 2),
    _aten.addmv.default: (1, 2),
    _aten.addr.default: (1, 2),
    _aten.linear.default: (0, 1),
    _aten.linear_backward.default: (0, 1, 2),
    _aten.convolution.default: (0, 1),
    _aten.convolution_backward.default: (0, 1, 2),
    _aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (0, 1, 2, 3),
    _aten.mkldnn_rnn_layer.default: (0, 1, 2, 5),
    _aten.mkldnn_rnn_layer_backward.default: (0, 1, 2, 5, 10, 11),
}
"""Ops below autograd that multiply and accumulate, and which of their arguments are multiplied (not a bias, nor a
matrix that is added). Composite ones (matmul, einsum, on CPU and CUDA linear) come down to these."""

VECTORS: frozenset[Any] = frozenset(op.default for op in (_aten.mv, _aten.dot, _aten.vdot, _aten.addmv, _aten.addr))
"""Those with a vector operand: tensor cores, and so TF32, have no part in them."""

_ALIKE: frozenset[Any] = frozenset(
    op.default for op in (_aten.mm, _aten.bmm, _aten.mv, _aten.dot, _aten.addmm, _aten.baddbmm, _aten.addmv)
)
"""Those that torch refuses where the operands' formats differ, natively on every device."""

_RESULT_ONLY = {_aten._scaled_dot_product_flash_attention_for_cpu.default}
"""Only their first result is rounded; the other is a float32 statistic."""

_Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Watcher(Protocol):
    """Told of each emulated op, with its operands as the model gave them, and of each tensor that holds numbers of a
    narrower format than its own."""

    emulating: bool

    def saw(self, func: Any, args: tuple[Any, ...], compute: str) -> None: ...

    def holds(self, x: Tensor, label: str) -> None: ...


class Emulation(Mode):
    """While entered, GEMMs whose operands are in the emulated format run in float32 and round as hardware would.

    float16 and bfloat16: real tensors of 16 bits flow between ops, products are accumulated in float32, results are
    rounded back. tfloat32: operands are rounded to ten mantissa bits, results are float32. Everything else passes.
    Compiled models run eagerly inside.
    """

    watchers: ClassVar[list[Watcher]] = []

    def __init__(self, compute: str) -> None:
        super().__init__()
        self.compute = compute
        self.paused = False
        self._eager: list[AbstractContextManager[Any]] = []
        self._dtype = storage_dtype(compute)
        run: _Handler = self._tfloat32 if compute == "tfloat32" else self._half
        self._table: dict[Any, _Handler] = dict.fromkeys(GEMMS, run)
        if compute == "tfloat32":
            self._table = {op: run for op in GEMMS if op not in VECTORS}

    def __enter__(self) -> Any:
        self._eager.append(eagerly())
        self._eager[-1].__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._eager.pop().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run = self._table.get(func)
        if run is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return run(func, args, kwargs or {})

    @contextmanager
    def switched(self, on: bool) -> Iterator[None]:
        """Emulation goes on, or stands still, inside."""
        before, self.paused = self.paused, not on
        try:
            yield
        finally:
            self.paused = before

    def _half(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = self._dtype
        if not any(isinstance(a, Tensor) and a.dtype is dtype for a in args):
            return func(*args, **kwargs)
        if func in _ALIKE and len(found := {args[i].dtype for i in GEMMS[func]}) > 1:
            raise RuntimeError(f"{func} wants operands of the same dtype, got {' and '.join(sorted(map(str, found)))}")
        wide = [a.float() if isinstance(a, Tensor) and a.dtype is dtype else a for a in args]
        named = {k: a.float() if isinstance(a, Tensor) and a.dtype is dtype else a for k, a in kwargs.items()}
        out = self._run(func, args, wide, named)
        if isinstance(out, Tensor):
            return out.to(dtype)
        if func in _RESULT_ONLY:
            return out[0].to(dtype), *out[1:]
        return tuple(o.to(dtype) if isinstance(o, Tensor) and o.dtype is torch.float32 else o for o in out)

    def _tfloat32(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or not any(isinstance(a, Tensor) and a.dtype is torch.float32 for a in args):
            return func(*args, **kwargs)
        rounded = list(args)
        for i in GEMMS[func]:
            if isinstance(args[i], Tensor) and args[i].dtype is torch.float32:
                rounded[i] = round_tfloat32(args[i])
        return self._run(func, args, rounded, kwargs)

    def _run(self, func: Any, given: tuple[Any, ...], wide: list[Any], kwargs: dict[str, Any]) -> Any:
        for watcher in self.watchers:
            watcher.saw(func, given, self.compute)
            watcher.emulating = True
        out = func(*wide, **kwargs)
        for watcher in self.watchers:
            watcher.emulating = False
        return out
