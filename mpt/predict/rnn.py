"""The workspace that oneDNN's kernel of an LSTM keeps from its forward to its backward, which no shape tells.

It is most of what an LSTM keeps on a CPU; torch's fake kernel makes an empty one. Source: torch,
aten/src/ATen/native/mkldnn/RNN.cpp. On CUDA, cuDNN keeps a reserve for the same numbers: gates and states.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mpt.predict.operands import TensorSpec, spec_of
from mpt.usercode import FAULTS

FORWARD = torch.ops.aten.mkldnn_rnn_layer.default
READS_WORKSPACE = frozenset({torch.ops.aten.mkldnn_rnn_layer_backward.default})
"""Kernels that read past the end of one that is not theirs."""
_WORKSPACE = 3
"""Its place among the forward's results."""
_TRIED_STEPS = 32
"""Sections of a workspace end on whole pages: a line through few steps of time would add those up. This many are
exact, of more it is within a page of each section in 16 steps."""


def with_workspace(args: tuple[Any, ...], out: Any) -> tuple[Tensor, ...]:
    """What FORWARD gives for `args`, with a workspace of the size that the kernel makes."""
    leaves = tuple(spec_of(x) if isinstance(x, Tensor) else tuple(x) if isinstance(x, list) else x for x in args)
    nbytes = _bytes(leaves)
    return (*out[:_WORKSPACE], out[_WORKSPACE].new_empty(nbytes), *out[_WORKSPACE + 1 :])


@cache
def _bytes(leaves: tuple[Any, ...]) -> int:
    """By asking the kernel: for as many steps of time, or on the line through two numbers of them."""
    steps = int(leaves[0].shape[0])
    try:
        if steps <= _TRIED_STEPS:
            return _asked(leaves, steps)
        half, whole = (_asked(leaves, n) for n in (_TRIED_STEPS // 2, _TRIED_STEPS))
    except FAULTS:  # a format that oneDNN does not have on this processor
        return 0
    return whole + (whole - half) * (steps - _TRIED_STEPS) // (_TRIED_STEPS // 2)


def _asked(leaves: tuple[Any, ...], steps: int) -> int:
    """Shapes: an input of (steps, batch, features), whatever `batch_first` says of the layer."""
    shape = (steps, *leaves[0].shape[1:])
    with unset_fake_temporarily(), torch.enable_grad():  # without, none is kept
        x = torch.zeros(shape, dtype=leaves[0].dtype)
        args = [torch.zeros(a.shape, dtype=a.dtype) if isinstance(a, TensorSpec) else a for a in leaves[1:]]
        return int(FORWARD(x, *[list(a) if type(a) is tuple else a for a in args])[_WORKSPACE].numel())
