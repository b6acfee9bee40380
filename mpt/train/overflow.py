"""Which gradients made a step be skipped: counted while they are there, else by kind."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mpt.build import Run
from mpt.telemetry.history import read
from mpt.train.step import Attempt

SHOWN = 20
"""Most tensors that one event lists; all are counted."""


def look(run: Run, attempt: Attempt) -> None:
    """On a CPU, where `found` lies in host memory and nothing waits: count while the gradients are there."""
    if run.device.type == "cpu" and attempt.found.numpy():
        count(run, attempt)


@torch.no_grad()
def count(run: Run, attempt: Attempt) -> None:
    """`attempt.faults` holds for each gradient its elements that are inf, those that are NaN, and the largest finite
    magnitude; call it before the next attempt. Shapes: tensors, 3."""
    grads = [g for p in run.optimizer.params if (g := p.grad) is not None]
    attempt.faults = torch.stack([_three(g) for g in grads])


def _three(grad: Tensor) -> Tensor:
    if not grad.numel():  # a layer without inputs has such
        return grad.new_zeros(3, dtype=torch.float32)
    largest = torch.where(grad.isfinite(), grad, 0).abs().max().float()
    return torch.stack([grad.isinf().sum().float(), grad.isnan().sum().float(), largest])


def overflow(run: Run, attempt: Attempt, order: tuple[str, ...]) -> dict[str, Any]:
    """What is known of the gradients of a skipped step, as the backward pass left them: scaled.

    `order` is that in which the backward pass reaches the parameters. Counts of elements are null where the gradients
    were overwritten before the host looked; the kind of each tensor is known all the same, by its norm. Reads the
    device: only skipped steps are asked.
    """
    have = [(n, m) for n, m in zip(run.policy.names, run.policy.masters, strict=True) if m.grad is not None]
    norms = read(attempt.parts)
    known = len(have) == len(norms)
    bad = [i for i, norm in enumerate(norms) if not math.isfinite(norm)]
    place = {name: i for i, name in enumerate(order)}
    ranked = sorted(bad, key=lambda i: place.get(have[i][0], len(place))) if known else bad
    finite = [norm for norm in norms if math.isfinite(norm)]
    first = have[ranked[0]][0] if known and ranked else None
    counts = None if attempt.faults is None or len(attempt.faults) != len(norms) else attempt.faults.tolist()
    return {
        "nonfinite_tensors": len(bad),
        "tensors": len(norms),
        "first_in_backward": first,
        "module": None if first is None else first.rpartition(".")[0],
        "largest_finite_norm": max(finite, default=None),
        "largest_finite": None if counts is None else max(row[2] for row in counts),
        "counted": counts is not None,
        "gradients": [_told(*have[i], norms[i], counts and counts[i]) for i in ranked[:SHOWN]] if known else [],
    }


def _told(name: str, param: Tensor, norm: float, counts: list[float] | None) -> dict[str, Any]:
    """One gradient with inf or NaN in it."""
    kind = "nan" if math.isnan(norm) else "inf"
    if counts is None:
        return {"name": name, "kind": kind, "elements": param.numel(), "inf": None, "nan": None, "share": None}
    inf, nan, _ = counts
    share = (inf + nan) / param.numel()
    return {"name": name, "kind": kind, "elements": param.numel(), "inf": int(inf), "nan": int(nan), "share": share}
