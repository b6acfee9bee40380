"""Tensors that hold nothing: the modes in which a step runs on them, and what they would leave behind."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from mpt.formats.hadamard import hadamard_matrix
from mpt.predict import rnn
from mpt.rng import capture, restore

_TORCHS_LOGS = [logging.getLogger(f"torch.{name}") for name in ("_subclasses.fake_tensor", "_inductor.scheduler")]
"""The second writes a whole graph where the compiler fails."""


@contextmanager
def no_trace_left() -> Iterator[None]:
    """Random states are afterwards what they were; no such tensor stays in a cache, nor a real one in the trace."""
    state = capture(torch.device("cpu"))
    hadamard_matrix.cache_clear()
    quiet = [log.disabled for log in _TORCHS_LOGS]
    for log in _TORCHS_LOGS:
        log.disabled = True  # what fails is told by fake.trace
    try:
        with warnings.catch_warnings():
            # addresses are compared
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            yield
    finally:
        for log, was in zip(_TORCHS_LOGS, quiet, strict=True):
            log.disabled = was
        hadamard_matrix.cache_clear()
        restore(state, torch.device("cpu"))


class Nothing(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensors that stay of one mode when they are copied, and whose in-place kernels do not run.

    An op that only writes into its operands makes no tensor. Without a meta kernel, as torch's fused optimizers are,
    torch would run it on real zeros: 16 bytes a weight, on a machine that may not have them.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Nothing:
        return self

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable and not func._schema.returns:
            return None
        out = super().dispatch(func, types, args, kwargs)
        return rnn.with_workspace(args, out) if func is rnn.FORWARD else out


class NoNumbers(TorchFunctionMode):
    """A number that holds nothing gives zero to numpy: the runner looks at a norm so, which costs no read."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is Tensor.numpy and not args[0].dim():
            return np.zeros((), np.float32)
        return func(*args, **(kwargs or {}))
