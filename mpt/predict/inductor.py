"""torch.compile on tensors that hold nothing: what Inductor writes runs as it is, but its kernels, which are not built.

A compiled graph is Python that makes tensors, calls kernels and lets go of tensors. Run on fake tensors it tells when
each comes and goes, and what each kernel reads and writes. Source: torch, _inductor/graph.py (compile_to_module) and
_inductor/codegen/wrapper.py; alike in torch 2.11 to 2.14.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

FUSED = "fused"
"""Name of the op that stands for a kernel of Inductor's."""

_ARGUMENT = re.compile(r"(const )?[\w:]+\s*\* (?:__restrict__ )?(\w+)")
_SIGNATURE = re.compile(r"kernel\((.*?)\)\s*\{", re.DOTALL)


@contextmanager
def unbuilt() -> Iterator[None]:
    """torch.compile makes its graphs anew inside, and builds no kernel; what it made is forgotten at the end."""
    from torch._dynamo import config as dynamo
    from torch._functorch import config as autograd
    from torch._inductor import config, cpp_builder, cpu_vec_isa
    from torch._inductor.graph import GraphLowering

    torch.compiler.reset()
    with (
        patch.object(GraphLowering, "compile_to_module", _module),
        patch.object(cpu_vec_isa, "valid_vec_isa_list", lambda: []),  # it would try a compiler, for seconds
        patch.object(cpp_builder, "is_gcc", lambda: False),  # both look for a compiler, and there may be none
        patch.object(cpp_builder, "is_msvc_cl", lambda: False),
        config.patch(fx_graph_cache=False),
        autograd.patch(enable_autograd_cache=False),
        dynamo.patch(automatic_dynamic_shapes=False),  # a trace of another batch is no second batch of a run
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # a run tells what its compiler warns of
        try:
            yield
        finally:
            torch.compiler.reset()


class Root(nn.Module):
    """The compiled model as one module without modules inside: hooks in a model would be compiled with it."""

    def __init__(self, forward: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self._compiled = (forward,)  # no module inside

    def forward(self, inputs: Tensor) -> Any:
        return self._compiled[0](inputs)


class _Kernel:
    """Called instead of the kernel that `source` would be."""

    def __init__(self, source: str) -> None:
        arguments = _ARGUMENT.findall(_SIGNATURE.search(source)[1])  # type: ignore[index]
        self._read = [bool(const) or name.startswith("in_out") for const, name in arguments]
        self._written = [not const for const, name in arguments]

    def __call__(self, *args: Any) -> None:
        tensors = [x for x in args if isinstance(x, Tensor)]
        given = [x for x, read in zip(tensors, self._read, strict=True) if read]
        _fused()(given, [x for x, written in zip(tensors, self._written, strict=True) if written])


class _Unbuilt:
    """AsyncCompile, which builds nothing."""

    def cpp_pybinding(self, types: Sequence[str], source: str, *_: Any, **__: Any) -> _Kernel:
        return _Kernel(source)

    def wait(self, scope: dict[str, Any]) -> None:
        """Nothing is under way."""


def _module(graph: Any) -> SimpleNamespace:
    """What Inductor would load, from the code that it would write."""
    code, _ = graph.codegen()
    scope: dict[str, Any] = {"__name__": __name__}
    with patch("torch._inductor.async_compile.AsyncCompile", _Unbuilt):
        exec(compile(code.value, "<inductor>", "exec"), scope)
    scope.update(_GUARDS, empty_strided_cpu=_empty, reinterpret_tensor=_reinterpreted)
    return SimpleNamespace(call=scope["call"], runner=scope.get("runner"), __file__=__file__, key="", path="")


def _empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype)


def _reinterpreted(x: Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
    return torch.as_strided(x, shape, stride, int(x.storage_offset()) + offset)


def _nothing(*_: Any) -> None:
    """Fake tensors are as Inductor saw them."""


_GUARDS = dict.fromkeys(
    ("assert_size_stride", "assert_size_stride_grouped", "assert_alignment", "assert_tensor_metadata"), _nothing
)


def _no_kernel(given: list[Tensor], written: list[Tensor]) -> None:
    raise NotImplementedError("a kernel of the compiler's that was never built")


@cache
def _fused() -> Callable[[list[Tensor], list[Tensor]], None]:
    """An op that dispatch modes see; on fake tensors it does nothing, on others it can't be done."""
    library = torch.library.Library("mpt", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(f"{FUSED}(Tensor[] given, Tensor(a!)[] written) -> ()")  # type: ignore[no-untyped-call]
    library.impl(FUSED, _no_kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)
    return getattr(torch.ops.mpt, FUSED).default  # type: ignore[no-any-return]


_LIBRARIES: list[torch.library.Library] = []
"""Kept: a library's ops go with it."""
