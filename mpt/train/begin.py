"""What a run begins with: its objects, as the checkpoint left them, its first micro-batch, space for what it saves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from mpt.build import build
from mpt.checkpoint import load
from mpt.checkpoint.contents import checked
from mpt.checkpoint.foreign import read_weights
from mpt.checkpoint.marker import STATE
from mpt.checkpoint.plain import size_bytes
from mpt.config.schema import RunConfig
from mpt.errors import CheckpointError, ModelError, Problem
from mpt.telemetry.clock import Clock
from mpt.telemetry.energy import EnergyMeter
from mpt.telemetry.history import History
from mpt.telemetry.memory import MemoryMeter
from mpt.train.compiler import require_compiler
from mpt.train.engine import make_engine
from mpt.train.faults import out_of_memory
from mpt.train.inject import injector
from mpt.train.parts import told as in_parts
from mpt.train.preflight import Preflight, fitting
from mpt.train.progress import Progress
from mpt.train.resume import Origin, checkpoint_dir, stored
from mpt.train.signals import StopRequest
from mpt.train.state import Course, capture, load_weights, restore, take_weights
from mpt.types import Batch, DeviceFacts
from mpt.units import bytes_text


def make_course(cfg: RunConfig, clock: Clock, start: Origin, state: dict[str, Any] | None) -> tuple[Course, list[str]]:
    """The objects of the run, at step 0 or where the checkpoint left them; and what was changed or reset."""
    try:
        run = build(cfg)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        what = f"model={cfg.model.choice} on data={cfg.data.name} does not fit into memory: {error}"
        raise ModelError(Problem("model, data", what, "make the model or data.image_size smaller")) from error
    require_compiler(cfg, run.plan)
    faults = injector(run)  # before the model is compiled
    engine = make_engine(run, run.plan.length.steps)
    history = History(engine.pace)
    course = Course(run, engine, history, clock, EnergyMeter(run.plan.device), Progress())
    engine.injector = faults
    if state is not None:
        told = restore(course, state, str(start.checkpoint), allow_changes=cfg.checkpoint.allow_changes)
        if start.reopen is None:
            course.progress.saved_step = -1  # not in this folder
        return course, told
    if cfg.init_from is not None:
        told = _start_from(course, Path(cfg.init_from))
        return course, [f"weights are those of {cfg.init_from}; all else starts anew", *told]
    return course, []


def _start_from(course: Course, path: Path) -> list[str]:
    """The model has the weights of a checkpoint, or of another program's file; sentences on what was done for it."""
    run, engine, where = course.run, course.engine, str(path)
    if path.is_file() and path.name != STATE:
        values, told = read_weights(path, run.model)
        return told + take_weights(run, engine, values, where)
    return load_weights(run, engine, checked(load(stored(path)), where), where)


@contextmanager
def on_device(facts: DeviceFacts) -> Iterator[None]:
    """Streams, events and default allocations inside are those of the run's own GPU."""
    with torch.cuda.device(facts.index) if facts.type == "cuda" else nullcontext():
        yield


def preflown(
    course: Course, memory: MemoryMeter, told: list[str], stop: StopRequest
) -> tuple[Preflight, Iterator[Batch]]:
    """The dry pass over the first micro-batch that the run will see, and its micro-batches from that one on.

    `told` gets a line where micro-batches have to be computed in parts.
    """
    run, progress, buffers = course.run, course.progress, course.engine.buffers
    stream = run.data.train(start=course.history.totals.step * run.plan.length.accumulate)
    first = next(stop.fetched(stream))
    seen, parts = fitting(run, buffers, memory, first, progress.parts)
    if parts > progress.parts:
        told.append(in_parts(len(first.targets), parts))
        progress.parts = parts
    course.engine.backward_order = seen.backward_order
    if course.engine.injector is not None:
        course.engine.injector.require_reached()
    return seen, _from(first, stream)


def _from(first: Batch, stream: Iterator[Batch]) -> Iterator[Batch]:
    """`first`, then `stream`; holds on to neither."""
    yield first
    del first
    yield from stream


def require_space(course: Course) -> None:
    """Raises: CheckpointError where the checkpoints to be kept, and one that is being written, will not fit."""
    cfg = course.run.cfg
    folder = checkpoint_dir(cfg, Path(cfg.run_dir or "outputs")).absolute()
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise CheckpointError(Problem(str(existing), "is no folder to save in", "remove it, or set checkpoint.dir"))
    wants = size_bytes(capture(course, {})) * (cfg.checkpoint.keep + 2)
    free = shutil.disk_usage(existing).free
    if free < wants:
        what = f"{cfg.checkpoint.keep} checkpoints, the best and one that is being written take {bytes_text(wants)}"
        hint = "free some space, lower checkpoint.keep, or set checkpoint.dir to another disk"
        raise CheckpointError(Problem(str(existing), f"{what}; {bytes_text(free)} are free", hint))
