"""One step of a plan on tensors that hold nothing: the runner's own step, under the policy as it is installed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)

from mpt.build import Parts, channels_last, imagined, model_of
from mpt.config.schema import RunConfig
from mpt.errors import ModelError, MptError, Problem, first_line
from mpt.plan.plan import Plan
from mpt.precision.switches import flags
from mpt.predict.compiled import traced_compiled
from mpt.predict.inductor import Root, unbuilt
from mpt.predict.lasting import kept_tensors, lasting_bytes, module_bytes, parameters_of
from mpt.predict.nothing import NoNumbers, Nothing, no_trace_left
from mpt.predict.reads import Reads
from mpt.predict.repeats import spare_repeats
from mpt.predict.trace import Trace
from mpt.predict.tracker import Tracker, Untraceable
from mpt.recompute import blocks
from mpt.train.engine import Engine, make_engine
from mpt.train.faults import line_of
from mpt.train.host import on_host
from mpt.types import Batch
from mpt.units import bytes_text
from mpt.usercode import FAULTS

MEASURED_WAY = "`mpt train … trainer.max_steps=10` measures memory and time; `mpt bench` compares precisions"


def trace(cfg: RunConfig, plan: Plan, batch: int | None = None, at_most: float = math.inf) -> Trace:
    """One attempt at an update, with up to two micro-batches of `batch` samples (None: the plan's own).

    Raises: Untraceable with the op that needs real numbers; TooLarge, before any op, where what a step finds and
    leaves is over `at_most` bytes.
    """
    compiled = traced_compiled(cfg, plan)
    cfg = replace(cfg, trainer=replace(cfg.trainer, compile=compiled, cuda_graphs=False))
    size, micro = batch or plan.batch_size, min(plan.length.accumulate, 2)
    with _explained(plan.model, compiled), no_trace_left(), _compiling(cfg, plan), Nothing() as mode, NoNumbers():
        reads = Reads()
        parts, engine, root = _made(cfg, plan, mode, reads, size)
        window = [_batch(cfg, plan, size) for _ in range(micro)]
        lasting = lasting_bytes(cfg, plan, parts, engine, window[0])
        if sum(lasting.values()) > at_most:
            raise TooLarge(Problem(plan.name, f"has {bytes_text(sum(lasting.values()))} between steps"))
        kept = kept_tensors(parts, engine)
        tracker = Tracker(root, plan.mechanism.compute == "tfloat32" and not plan.mechanism.emulated, reads)
        _attempt(parts, engine, tracker, window)
        weights = module_bytes(parts, lasting)
        for holder in parts.policy.weights:  # freed here, where fake tensors can be
            holder.grad = None
    return Trace(
        batch=size,
        micro=micro,
        ops=tuple(tracker.ops),
        storages=tracker.lifetimes.storages(),
        events=tracker.lifetimes.order(tracker.forward_end),
        forward_end=tracker.forward_end,
        lasting=lasting,
        weights=weights,
        calls=tuple(tracker.kinds.calls),
        flow=tuple(tracker.flow) if len(tracker.flow) == len(tracker.ops) else (),
        uncounted=frozenset(tracker.uncounted),
        turns=tuple(tracker.turns),
        ready=tracker.lifetimes.ready(),
        parameters=parameters_of(parts.model),
        kept=kept,
        blocks=blocks(parts.model),
    )


class TooLarge(ModelError):
    """A step that does not fit, whatever its ops take."""


def _made(cfg: RunConfig, plan: Plan, mode: FakeTensorMode, reads: Reads, size: int) -> tuple[Parts, Engine, nn.Module]:
    """The parts of a step as they stand before it, what the engine makes of them, and what it calls as the model.

    Raises: Untraceable for a step that is no sequence of ops known before.
    """
    model = _fake_model(cfg, plan, mode)
    with reads:
        parts = imagined(cfg, plan, model)
        reads.state = parts.optimizer.state_tensors
        engine = make_engine(parts)
        if parts.optimizer.by_closure:
            what = "decides by its numbers how often it computes the loss"
            raise Untraceable(Problem(f"optimizer={cfg.optimizer.name}", what))
        stepper, compiled = engine.stepper, cfg.trainer.compile
        root = stepper.model = Root(stepper.model) if compiled else parts.model
        if compiled or not parts.optimizer.state_tensors():  # made in the first step, where there is any
            stepper([_batch(cfg, plan, size)])
    return parts, engine, root


def _fake_model(cfg: RunConfig, plan: Plan, mode: FakeTensorMode) -> nn.Module:
    """Built on nothing; where its code needs numbers as it builds, made of a real one."""
    try:
        return model_of(cfg, plan)
    except (*FAULTS, MptError):
        with unset_fake_temporarily():
            return _emptied(model_of(cfg, plan), mode)


def _emptied(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """The model with fake tensors in place of its own; what is tied stays tied."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = mode.from_tensor(tensor)  # type: ignore[assignment]
    return model


def _attempt(parts: Parts, engine: Engine, tracker: Tracker, window: list[Batch]) -> None:
    """As Stepper does it, seen by the tracker, the update told apart."""
    stepper = engine.stepper
    tracker.lifetimes.number(parts.model.parameters())
    spare_repeats(parts, tracker)
    with tracker:
        tracker.follow_gradients(parts.policy.weights)
        engine.buffers.keep()
        attempt, excess = stepper.backward(window)
        tracker.phase = "update"
        with torch.no_grad():
            stepper.update(attempt, excess)
        for master in parts.policy.masters:
            tracker.lifetimes.is_gradient(master)


def _batch(cfg: RunConfig, plan: Plan, size: int) -> Batch:
    """Shapes: as Batch has them."""
    shape = (size, *plan.data.shape)
    if plan.data.kind == "tokens":
        return Batch(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64))
    inputs = torch.zeros(shape)
    if channels_last(cfg) and inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return Batch(inputs, torch.zeros(size, dtype=torch.int64))


@contextmanager
def _compiling(cfg: RunConfig, plan: Plan) -> Iterator[None]:
    """What is compiled inside is compiled as in a run, whose threads decide what is fused."""
    if not cfg.trainer.compile:
        yield
        return
    with flags(cfg.precision, plan.device), on_host(cfg, plan), unbuilt():
        yield


@contextmanager
def _explained(model: str, compiled: bool) -> Iterator[None]:
    """What can't be done without numbers is told with its op, and the way that can."""
    how = " compiled" if compiled else ""
    try:
        yield
    except Untraceable as error:
        raise Untraceable(*(Problem(p.where, p.what, MEASURED_WAY) for p in error.problems)) from error
    except MptError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
        what = f"can't be traced{how}: what {error.func} gives depends on numbers"
        raise Untraceable(Problem(f"model={model}", what, MEASURED_WAY)) from error
    except FAULTS as error:
        what = f"can't be traced{how} on tensors that hold nothing: {type(error).__name__}: {first_line(error)}"
        what += f" in {where}" if (where := line_of(error)) else ""
        raise Untraceable(Problem(f"model={model}", what, MEASURED_WAY)) from error
