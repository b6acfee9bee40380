"""Where a pass first became non-finite: op, line and module, ranges, samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mpt.build import Run
from mpt.precision.origins import Origin, Origins
from mpt.precision.spoilt import extent
from mpt.train.again import gradients, kept_grads, no_trace, window
from mpt.train.buffers import Buffers
from mpt.train.faults import out_of_memory
from mpt.types import Batch


def locate(run: Run, buffers: Buffers, step: int) -> dict[str, Any]:
    """What the batch of attempt `step` (1-based) does in a forward pass with the weights as they are.

    The first module whose output is non-finite, the range of its input, the op that made inf or NaN of finite numbers
    (`origin`, None where they were given), and the samples concerned (indices into the training set);
    `{"module": None}` where every output and loss is finite now. Leaves no trace.
    """
    with torch.no_grad(), no_trace(run, buffers):
        for micro, batch in window(run, step):
            with Origins(run.model) as origins, _watched(run.model) as seen:
                with run.policy.forward():
                    output = run.model(batch.inputs)
                loss = run.task.loss_sum(output, batch)
            if not loss.isfinite():
                return _told(run, micro, batch, seen or [("the loss", (output,), output)], origins.of(loss))
    return {"module": None}


def locate_backward(run: Run, buffers: Buffers, step: int) -> Origin | None:
    """The op to which non-finite gradients of attempt `step` go back at a loss scale of 1; None where all are finite
    at that scale, were given, or there is no memory to look. The gradients that weights have now stay."""
    try:
        with kept_grads(run), no_trace(run, buffers):
            return next((o for _, batch in window(run, step) if (o := _backward(run, batch)) is not None), None)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return None


def _backward(run: Run, batch: Batch) -> Origin | None:
    with Origins(run.model) as origins:
        grads = gradients(run, batch, torch.ones((), device=run.device))
    found: Origin | None = origins.first_of([g for g in grads if not g.isfinite().all()])
    return found


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


def _told(run: Run, micro: int, batch: Batch, seen: list[_Seen], origin: Origin | None) -> dict[str, Any]:
    """The module is the one whose own forward made the numbers, where they were first seen in another's output."""
    name, inputs, output = seen[0]
    indices, given, made = run.data.train_indices(micro), _floating(inputs), _floating(output)
    if origin is not None and (origin.module, origin.of) == ("the loss", "inf"):
        origin = None  # it was handed inf, which somebody wrote
    told = {"module": name, "input": extent(given), "output": extent(made)}
    if origin is not None and (origin.module or "the model") != name:
        told = {"module": origin.module or "the model", "input": origin.input, "output": origin.output}
    return {
        **told,
        "origin": None if origin is None else origin.document(),
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
