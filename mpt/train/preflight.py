"""One forward and backward on the first micro-batch before anything is written; it leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpt.build import Run
from mpt.errors import ModelError, MptError, Problem, Stopped
from mpt.plan.mfu import Work
from mpt.precision.audit import Auditor
from mpt.precision.misfits import shown
from mpt.precision.probe import probe
from mpt.telemetry.memory import MemoryMeter
from mpt.train.again import no_trace
from mpt.train.buffers import Buffers
from mpt.train.faults import line_of, module_of, out_of_memory
from mpt.train.known import known
from mpt.train.parts import cut, smaller, undo
from mpt.train.step import start_backward
from mpt.types import Audit, Batch
from mpt.usercode import FAULTS


@dataclass(frozen=True)
class Preflight:
    """What the dry pass saw: formats, products, and the weights that no gradient reached."""

    audit: Audit
    work: Work
    numerics: dict[str, Any]
    idle_weights: tuple[str, ...]
    backward_order: tuple[str, ...]
    """Names of the weights in the order in which their gradients came."""

    def document(self) -> dict[str, Any]:
        """audit.json's content."""
        return {"schema": "mpt.audit/1", **asdict(self.audit), "numerics": self.numerics}

    def lines(self) -> list[str]:
        """What the user reads of it before the first step."""
        rows = self.audit.rows
        wrong = [r for r in rows if not r.matches]
        lines = [f"audit: {len(rows)} modules observed, all as planned"]
        if self.audit.verdict != "match":
            lines = [f"audit: {len(wrong)} of {len(rows)} modules differ from the plan"]
            lines += [f"  {r.name}: planned {r.planned}, saw {', '.join(r.forward + r.backward)}" for r in wrong[:5]]
        if self.idle_weights:
            lines.append(f"{len(self.idle_weights)} weights got no gradient: {', '.join(self.idle_weights[:3])}, …")
        return lines + [f"in {told}" for told in shown(self.audit.misfits)]


def preflight(run: Run, buffers: Buffers, memory: MemoryMeter, batch: Batch) -> Preflight:
    """The audit of one eager pass over `batch`; weights, buffers and random states are as before.

    Raises: ModelError if the model fails, its output does not fit the task, or nothing can be trained.
    """
    with _without_trace(run, buffers):
        return _pass(run, memory, batch)


def fitting(run: Run, buffers: Buffers, memory: MemoryMeter, batch: Batch, parts: int) -> tuple[Preflight, int]:
    """The dry pass over the first of `parts` parts of the batch, or of twice as many until one fits; and how many.

    Raises: ModelError if not even a single sample fits, or the model fails otherwise.
    """
    while True:
        part = next(cut(batch, parts))
        try:
            return preflight(run, buffers, memory, Batch(part.inputs.clone(), part.targets.clone())), parts
        except DoesNotFit:
            more = smaller(len(batch.targets), parts)
            if more is None:
                raise
        parts = more
        undo(run, buffers)  # not inside the handler: the error holds on to all that the failed pass had in memory


class DoesNotFit(ModelError):
    """Memory ran out in the dry pass."""


@contextmanager
def _without_trace(run: Run, buffers: Buffers) -> Iterator[None]:
    with no_trace(run, buffers):
        try:
            yield
        finally:
            for weight in run.policy.weights:
                weight.grad = None


def _pass(run: Run, memory: MemoryMeter, batch: Batch) -> Preflight:
    formats = {n: p.dtype for n, p in run.model.named_parameters()}
    with run.policy.forward():
        proof = probe(run.device.type)  # first: libraries take their workspace at the first product
    auditor = Auditor(run.model, run.plan.rows, run.cfg.precision, run.plan.mechanism)
    with _explained(run, batch), memory.observed(*batch), auditor, _arrivals(run) as order:
        with run.policy.forward():
            output = run.model(batch.inputs)
        run.task.check(output, batch)
        loss_sum = run.task.loss_sum(output, batch)
        del output  # as the step does: what the graph does not need of it is gone
        memory.forward_done()
        if not loss_sum.requires_grad:
            raise ModelError(
                Problem(f"model={run.cfg.model.choice}", "no weight of it gets a gradient: all are frozen")
            )
        with run.policy.backward():
            start_backward(loss_sum, run.scaler.scale / run.task.count(batch))
    _refuse_what_can_not_be_updated(run.cfg.model.choice, run.model, formats)
    idle = tuple(_idle(run.model, run.policy.weights))
    return Preflight(auditor.result(), Work(auditor.flops, auditor.uncounted), proof, idle, tuple(order))


@contextmanager
def _arrivals(run: Run) -> Iterator[list[str]]:
    """Gives a list that holds the names of weights as their gradients come."""
    order: list[str] = []
    handles = [
        weight.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))  # type: ignore[no-untyped-call]
        for name, weight in zip(run.policy.names, run.policy.weights, strict=True)
    ]
    try:
        yield order
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _explained(run: Run, batch: Batch) -> Iterator[None]:
    choice = run.cfg.model.choice
    try:
        yield
    except (MptError, Stopped):
        raise
    except (*FAULTS, MemoryError, SystemExit, StopIteration) as error:
        if out_of_memory(error):
            what = f"does not fit into memory with a micro-batch of {len(batch.targets)}"
            hint = "make the model or data.image_size smaller"
            hint = hint if run.plan.recomputed else f"trainer.checkpoint_activations=true takes less; or {hint}"
            raise DoesNotFit(Problem(f"model={choice}", what, hint)) from error
        shown = f"{type(error).__name__}: {error}"
        what = f"failed on its first batch, inputs {tuple(batch.inputs.shape)} {batch.inputs.dtype}: {shown}"
        where = line_of(error) or module_of(error, run.model)
        hint = "; ".join(filter(None, (known(str(error)), f"raised in {where}")))
        raise ModelError(Problem(f"model={choice}", what, hint)) from error


def _refuse_what_can_not_be_updated(choice: str, model: nn.Module, before: dict[str, torch.dtype]) -> None:
    """Raises: ModelError where the forward changed its own weights' formats, or a gradient is sparse."""
    now = {name: p.dtype for name, p in model.named_parameters()}
    if now != before:
        name = next(n for n in {**before, **now} if now.get(n) != before.get(n))
        what = f"its forward replaced or cast its own weights: {name} was {before.get(name)}, is {now.get(name)}"
        raise ModelError(
            Problem(f"model={choice}", what, "leave formats to precision=…: take `.half()` and the like out")
        )
    sparse = [n for n, p in model.named_parameters() if p.grad is not None and p.grad.layout is not torch.strided]
    if sparse:
        raise ModelError(Problem(f"model={choice}", f"the gradient of {sparse[0]} is sparse", "use sparse=False"))


def _idle(model: nn.Module, weights: list[nn.Parameter]) -> Iterator[str]:
    reached: set[int] = {id(w) for w in weights if isinstance(w.grad, Tensor)}
    for name, weight in model.named_parameters():
        if weight.requires_grad and id(weight) not in reached:
            yield name
