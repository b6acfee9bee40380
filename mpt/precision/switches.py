"""The owner of every process-wide switch that changes numerics: TF32, reduced-precision sums, determinism."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch._functorch.config

from mpt.precision.capability import resolve
from mpt.types import DeviceFacts

if TYPE_CHECKING:
    from mpt.config.schema import PrecisionConfig

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_cuda: Any = torch.backends.cuda
_cudnn: Any = torch.backends.cudnn
_mkldnn: Any = torch.backends.mkldnn


class _Switch(NamedTuple):
    get: Callable[[], Any]
    set: Callable[[Any], None]

    def read(self) -> Any:
        """Its value, None where torch refuses to tell because older and newer settings disagree."""
        try:
            return self.get()
        except RuntimeError:
            return None

    def put(self, value: Any) -> None:
        """Give it that value if it has another: one setter imports torch's compiler, which takes seconds."""
        if self.read() != value:
            self.set(value)


def _attribute(owner: Any, name: str) -> _Switch:
    return _Switch(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


_LEGACY: dict[str, _Switch] = {
    "float32_matmul_precision": _Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cudnn.allow_tf32": _attribute(_cudnn, "allow_tf32"),
}
"""Set first: they write the newer ones too, and torch refuses to read them once the two disagree."""

_PRECISION: dict[str, _Switch] = {
    "cuda.matmul.fp32_precision": _attribute(_cuda.matmul, "fp32_precision"),
    "cudnn.conv.fp32_precision": _attribute(_cudnn.conv, "fp32_precision"),
    "cudnn.rnn.fp32_precision": _attribute(_cudnn.rnn, "fp32_precision"),
    "mkldnn.matmul.fp32_precision": _attribute(_mkldnn.matmul, "fp32_precision"),
    "mkldnn.conv.fp32_precision": _attribute(_mkldnn.conv, "fp32_precision"),
    "mkldnn.rnn.fp32_precision": _attribute(_mkldnn.rnn, "fp32_precision"),
}

_OTHERS: dict[str, _Switch] = {
    "cuda.matmul.allow_fp16_reduced_precision_reduction": _attribute(
        _cuda.matmul, "allow_fp16_reduced_precision_reduction"
    ),
    "cuda.matmul.allow_bf16_reduced_precision_reduction": _attribute(
        _cuda.matmul, "allow_bf16_reduced_precision_reduction"
    ),
    "cuda.matmul.allow_fp16_accumulation": _attribute(_cuda.matmul, "allow_fp16_accumulation"),
    "cuda.fp16_bf16_reduction_math_sdp": _Switch(
        _cuda.fp16_bf16_reduction_math_sdp_allowed, _cuda.allow_fp16_bf16_reduction_math_sdp
    ),
    "mha.fastpath": _Switch(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    "cudnn.benchmark": _attribute(_cudnn, "benchmark"),
    "cudnn.deterministic": _attribute(_cudnn, "deterministic"),
    "deterministic_algorithms": _Switch(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
}

_COMPILED: dict[str, _Switch] = {
    "functorch.backward_pass_autocast": _attribute(torch._functorch.config, "backward_pass_autocast"),
}
"""Compiled code would run the backward of a float32 module under autocast, in half, where eager code does not."""

_SWITCHES = {**_LEGACY, **_PRECISION, **_OTHERS, **_COMPILED}


@contextmanager
def flags(cfg: PrecisionConfig, facts: DeviceFacts, deterministic: bool = False) -> Iterator[None]:
    """Set every switch to what the policy means, and give all of them their old values back at the end.

    TF32 is on for matmul, convolution and recurrent layers together or off for all; sums are kept in float32;
    attention multiplies in the policy's format by whichever kernel, in evaluation too; cuDNN's benchmark, whose choice
    depends on timing, is off with `deterministic`.
    """
    mechanism = resolve(cfg, facts)
    with _given_back(_SWITCHES), _cublas_workspace(deterministic):
        _set_tfloat32(mechanism.compute == "tfloat32" and not mechanism.emulated)
        _set_others(deterministic, benchmark=facts.type == "cuda" and not deterministic)
        yield


@contextmanager
def _cublas_workspace(deterministic: bool) -> Iterator[None]:
    """The size of workspace without which cuBLAS is not deterministic, unless the user has set one."""
    if not deterministic or _WORKSPACE in os.environ:
        yield
        return
    os.environ[_WORKSPACE] = ":4096:8"
    try:
        yield
    finally:
        del os.environ[_WORKSPACE]


@contextmanager
def tfloat32_switched(on: bool) -> Iterator[None]:
    """TF32 on or off inside, on CUDA: for a module that a rule takes out of the policy, or plain float32."""
    with _given_back({**_LEGACY, **_PRECISION}):
        _set_tfloat32(on)
        yield


@contextmanager
def float32_through_onednn() -> Iterator[None]:
    """Float32 matrix products on the CPU go to oneDNN inside, which may multiply in bfloat16 where the CPU has AMX."""
    switch = _PRECISION["mkldnn.matmul.fp32_precision"]
    before = switch.read()
    switch.put("bf16")
    try:
        yield
    finally:
        switch.put(before)


def float32_goes_to_onednn() -> bool:
    """Whether float32_through_onednn is entered."""
    return bool(_PRECISION["mkldnn.matmul.fp32_precision"].read() == "bf16")


def observed() -> dict[str, Any]:
    """The switches as they stand now; null where torch refuses to tell."""
    return {name: switch.read() for name, switch in _SWITCHES.items()}


def eagerly() -> AbstractContextManager[Any]:
    """Compiled models run eagerly inside: a dispatch mode can't see into compiled code, and must not be compiled
    itself. Nothing to do where the compiler was never loaded."""
    if "torch._dynamo" in sys.modules:
        stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance
    return nullcontext()


def tfloat32_allowed(convolution: bool) -> bool:
    """Whether CUDA may use TF32 for float32 operands of that kind of op, as torch is set now."""
    own = _cudnn.conv.fp32_precision if convolution else _cuda.matmul.fp32_precision
    return bool(own == "tf32")


@contextmanager
def _given_back(switches: dict[str, _Switch]) -> Iterator[None]:
    """These switches have their old values at the end; one that torch refuses to read is left to the newer ones."""
    before = {name: switch.read() for name, switch in switches.items()}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                switches[name].put(value)


def _set_tfloat32(on: bool) -> None:
    _LEGACY["float32_matmul_precision"].put("high" if on else "highest")
    _LEGACY["cudnn.allow_tf32"].put(on)
    for name, switch in _PRECISION.items():
        switch.put("tf32" if on and not name.startswith("mkldnn") else "ieee")


def _set_others(deterministic: bool, benchmark: bool) -> None:
    values = dict.fromkeys(_OTHERS, False)
    values["cuda.fp16_bf16_reduction_math_sdp"] = True
    values["cudnn.benchmark"] = benchmark
    values["cudnn.deterministic"] = deterministic
    values["deterministic_algorithms"] = deterministic
    _COMPILED["functorch.backward_pass_autocast"].put("off")
    for name, value in values.items():
        _OTHERS[name].put(value)
