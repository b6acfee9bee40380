"""Where a forward pass first became non-finite: module, ranges, samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mpt import rng
from mpt.build import Run
from mpt.train.buffers import Buffers
from mpt.types import Batch


@torch.no_grad()
def locate(run: Run, buffers: Buffers, step: int) -> dict[str, Any]:
    """What the batch of attempt `step` (1-based) does in a forward pass with the weights as they are.

    The first module whose output is non-finite, the range of its input, and the samples concerned (indices into
    the training set); `{"module": None}` where every output and loss is finite now. Leaves no trace.
    """
    state = rng.capture(run.device)
    buffers.keep()
    length, found = run.plan.length, None
    first = (step - 1) * length.accumulate
    for micro in range(first, first + length.window(step - 1)):
        batch = run.data.batch(micro)
        with _watched(run.model) as seen, run.policy.forward():
            output = run.model(batch.inputs)
        if seen or not run.task.loss_sum(output, batch).isfinite():
            found = _told(run, micro, batch, seen or [("the loss", (output,), output)])
            break
    buffers.restore(torch.ones((), device=run.device))
    rng.restore(state, run.device)
    return found or {"module": None}


_Seen = tuple[str, tuple[Any, ...], Any]


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[_Seen]]:
    """Gives a list that holds the first module (innermost) with a non-finite output, and its inputs."""
    seen: list[_Seen] = []

    def hook(name: str) -> Callable[..., None]:
        def look(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not seen and not _finite(output):
                seen.append((name, inputs, output))

        return look

    handles = [m.register_forward_hook(hook(name or "the model")) for name, m in model.named_modules()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _floating(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor) and t.is_floating_point()]


def _finite(tree: Any) -> bool:
    return all(bool(t.isfinite().all()) for t in _floating(tree))


def _told(run: Run, micro: int, batch: Batch, seen: list[_Seen]) -> dict[str, Any]:
    name, inputs, output = seen[0]
    indices = run.data.train_indices(micro)
    return {
        "module": name,
        "input": _range(_floating(inputs)),
        "output": _range(_floating(output)),
        "samples": [indices[i] for i in _rows(batch, output) if i < len(indices)],
        "inputs_finite": _finite(batch.inputs),
    }


def _rows(batch: Batch, output: Any) -> list[int]:
    """Positions in the batch at which the input, else the module's output, is non-finite."""
    size = len(batch.targets)
    for tensor in [*_floating(batch.inputs), *_floating(output)]:
        if tensor.dim() and len(tensor) == size and not tensor.isfinite().all():
            return [int(i) for i in (~tensor.isfinite()).reshape(size, -1).any(1).nonzero().flatten()]
    return list(range(size))


def _range(tensors: list[Tensor]) -> dict[str, Any] | None:
    """Format, extremes of the finite part, and the share that is not finite; None where nothing is floating."""
    if not tensors:
        return None
    flat = torch.cat([t.reshape(-1).float() for t in tensors])
    finite = flat[flat.isfinite()]
    return {
        "format": str(tensors[0].dtype).removeprefix("torch."),
        "min": float(finite.min()) if finite.numel() else None,
        "max": float(finite.max()) if finite.numel() else None,
        "nonfinite_frac": 1 - finite.numel() / flat.numel(),
    }
