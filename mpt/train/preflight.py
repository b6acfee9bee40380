"""One forward and backward on the first micro-batch before anything is written; it leaves no trace."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mpt import rng
from mpt.build import Run
from mpt.errors import ModelError, Problem
from mpt.precision.audit import Auditor
from mpt.train.buffers import Buffers
from mpt.types import Audit, Batch


@dataclass(frozen=True)
class Preflight:
    """What the dry pass saw: formats, bytes, and the weights that no gradient reached."""

    audit: Audit
    activation_bytes: int
    idle_weights: tuple[str, ...]


def preflight(run: Run, buffers: Buffers, batch: Batch) -> Preflight:
    """The audit of one eager pass over `batch`; weights, buffers and random states are as before.

    Raises: ModelError if the model fails, its output does not fit the task, or nothing can be trained.
    """
    state = rng.capture(run.device)
    buffers.keep()
    auditor = Auditor(run.model, run.plan.rows, run.cfg.precision, run.plan.mechanism)
    with auditor:
        with run.policy.forward(), _explained(run.cfg.model.choice, batch):
            output = run.model(batch.inputs)
        run.task.check(output, batch)
        loss_sum = run.task.loss_sum(output, batch)
        if not loss_sum.requires_grad:
            raise ModelError(Problem(f"model={run.cfg.model.choice}", "no weight of it gets a gradient: all are frozen"))
        with run.policy.backward():
            loss_sum.backward(run.scaler.scale / run.task.count(batch))
    idle = tuple(_idle(run.model, run.policy.weights))
    for weight in run.policy.weights:
        weight.grad = None
    buffers.restore(torch.ones((), device=run.device))
    rng.restore(state, run.device)
    return Preflight(auditor.result(), auditor.activation_bytes, idle)


@contextmanager
def _explained(choice: str, batch: Batch) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"failed on its first batch, inputs {tuple(batch.inputs.shape)} {batch.inputs.dtype}: {error}"
        raise ModelError(Problem(f"model={choice}", what, f"raised in {where.filename}:{where.lineno}")) from error


def _idle(model: nn.Module, weights: list[nn.Parameter]) -> Iterator[str]:
    reached: set[int] = {id(w) for w in weights if isinstance(w.grad, Tensor)}
    for name, weight in model.named_parameters():
        if weight.requires_grad and id(weight) not in reached:
            yield name
