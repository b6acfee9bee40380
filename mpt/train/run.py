"""One run from configuration to summary; what the command line calls."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from mpt.build import build, make_plan
from mpt.checkpoint import CheckpointStore, Saver, load
from mpt.checkpoint.contents import checked
from mpt.checkpoint.plain import size_bytes
from mpt.checkpoint.saver import Saved
from mpt.config import saved
from mpt.config.schema import RunConfig
from mpt.errors import CheckpointError, ExitCode, ModelError, MptError, Problem, RunFault
from mpt.loggers._follow import following
from mpt.plan.facts import probe
from mpt.plan.plan import Plan
from mpt.precision.switches import flags, observed
from mpt.record.folder import new_run_dir
from mpt.record.provenance import environment, source
from mpt.record.writer import RunWriter, past
from mpt.telemetry.clock import Clock
from mpt.telemetry.console import Console, make_console
from mpt.telemetry.energy import EnergyMeter
from mpt.telemetry.history import History
from mpt.telemetry.memory import MemoryMeter
from mpt.train.closing import last_lines
from mpt.train.engine import make_engine
from mpt.train.faults import ending_of, out_of_memory
from mpt.train.host import on_host
from mpt.train.inject import injector
from mpt.train.loop import Loop
from mpt.train.outcome import summarize
from mpt.train.parts import told as in_parts
from mpt.train.preflight import Preflight, fitting
from mpt.train.products import cpu_products
from mpt.train.progress import Ending, Progress
from mpt.train.resume import Origin, checkpoint_dir, origin, stored
from mpt.train.signals import StopRequest
from mpt.train.state import Course, capture, changes, load_weights, restore
from mpt.types import Batch, DeviceFacts
from mpt.units import bytes_text


def plan(cfg: RunConfig) -> Plan:
    """What `train(cfg)` would do. Raises: MptError where it can't be done."""
    return make_plan(cfg)


def train(cfg: RunConfig, argv: list[str]) -> int:
    """Train as `cfg` asks; the exit code. The run folder is made once everything is known to fit.

    Raises: MptError, with nothing written, where the request can't be done.
    """
    facts = probe(cfg.device)
    clock = Clock(facts.type)
    with StopRequest() as stop, on_device(facts), flags(cfg.precision, facts, cfg.trainer.deterministic):
        start = origin(cfg)
        state = checked(load(start.checkpoint), str(start.checkpoint)) if start.checkpoint else None
        if start.finished and not (state and changes(cfg, state)):
            print(f"{start.reopen} is finished already: nothing to do", file=sys.stderr)
            return ExitCode.FINISHED
        with clock.phase("startup"), stop.waiting():
            course, told = _course(cfg, clock, start, state)
        plan = course.run.plan
        with on_host(cfg, plan), cpu_products(cfg, plan) as products, closing(course.run.data):
            return _train(course, start, state, [*told, *products], stop, argv)


def _train(
    course: Course, start: Origin, state: dict[str, Any] | None, told: list[str], stop: StopRequest, argv: list[str]
) -> int:
    """From built objects to the marker in the run folder."""
    cfg, run = course.run.cfg, course.run
    with course.clock.phase("startup"):
        memory = MemoryMeter(str(run.device))
        memory.start()
        seen, batches = _preflown(course, memory, told, stop)
        _require_space(course)
        writer, run_dir = _open(course, start, state)
    told_to = following(run_dir, cfg.logger, run.plan.name, cfg.trainer.log_every)
    with writer, make_console() as console, told_to:
        saver = _saver(cfg, run_dir, writer)

        def go() -> Ending:
            _describe(course, writer, console, run_dir, start, seen, told, argv)
            loop = Loop(course, batches=batches, writer=writer, saver=saver, console=console, stop=stop, memory=memory)
            with saver:
                return loop.run()

        ending = _ending(go, writer)
        try:
            writer.json("summary", summarize(course, ending, seen, memory, saver.costs))
            writer.finish(ending.marker, ending.reason)
        except RunFault as fault:  # a disk that fails at the very end takes nothing that was saved
            ending = Ending("FAILED", fault.exit_code, str(fault))
        console.finish(list(last_lines(course, ending, run_dir, argv)))
    return ending.exit_code


def _course(cfg: RunConfig, clock: Clock, start: Origin, state: dict[str, Any] | None) -> tuple[Course, list[str]]:
    """The objects of the run, at step 0 or where the checkpoint left them; and what was changed or reset."""
    try:
        run = build(cfg)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        what = f"model={cfg.model.choice} on data={cfg.data.name} does not fit into memory: {error}"
        raise ModelError(Problem("model, data", what, "make the model or data.image_size smaller")) from error
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
        weights = checked(load(stored(Path(cfg.init_from))), cfg.init_from)
        told = load_weights(run, course.engine, weights, cfg.init_from)
        return course, [f"weights are those of {cfg.init_from}; all else starts anew", *told]
    return course, []


@contextmanager
def on_device(facts: DeviceFacts) -> Iterator[None]:
    """Streams, events and default allocations inside are those of the run's own GPU."""
    with torch.cuda.device(facts.index) if facts.type == "cuda" else nullcontext():
        yield


def _preflown(
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


def _require_space(course: Course) -> None:
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


def _open(course: Course, start: Origin, state: dict[str, Any] | None) -> tuple[RunWriter, Path]:
    """The record, at the checkpoint's place in it."""
    cfg, offset = course.run.cfg, state["offset"] if state else {}
    if start.reopen is not None:
        return RunWriter.reopen(start.reopen, offset), start.reopen
    history = past(start.history, offset) if start.history is not None else {}
    run_dir = Path(cfg.run_dir) if cfg.run_dir else new_run_dir(Path("outputs"), course.run.plan.name)
    writer = RunWriter(run_dir)
    writer.begin_with(history)
    return writer, run_dir


def _saver(cfg: RunConfig, run_dir: Path, writer: RunWriter) -> Saver:
    """What saves the run, with an event for each checkpoint that is on disk."""

    def tell(saved: Saved) -> None:
        writer.event(
            "checkpoint", step=saved.step, update=saved.update, path=saved.path.name, write_s=round(saved.write_s, 6)
        )

    store = CheckpointStore(checkpoint_dir(cfg, run_dir), cfg.checkpoint.keep)
    return Saver(store, background=cfg.checkpoint.background, sync=writer.sync, told=tell)


def _describe(
    course: Course,
    writer: RunWriter,
    console: Console,
    run_dir: Path,
    start: Origin,
    seen: Preflight,
    told: list[str],
    argv: list[str],
) -> None:
    """Asked, decided, where, exact code and observed formats are on disk; the first lines are shown."""
    run = course.run
    writer.text("config.yaml", saved.dump(run.cfg))
    writer.json("plan", run.plan.to_json())
    writer.json("env", environment(run.plan.device, observed(), torch.get_num_threads()))
    writer.text("source.txt", source(argv))
    writer.json("audit", seen.document())
    lines = [*run.plan.lines(), *run.data.notes, *seen.lines(), *told]
    lines += [f"passed over {path}: {why}" for path, why in start.rejected]
    if run.cfg.debug.inject:
        lines.append("faults are put in on purpose (debug.inject): what comes of it is no result")
    step = course.history.totals.step
    if start.checkpoint is not None:
        lines.append(f"goes on after step {step} from {start.checkpoint}")
        writer.event("resumed", step=step, checkpoint=str(start.checkpoint), changed=told)
    else:
        writer.event("started", notes=told)
    for note in run.data.notes:
        writer.event("data", note=note)
    console.start([*lines, f"record: {run_dir}"])


def _ending(go: Callable[[], Ending], writer: RunWriter) -> Ending:
    """How the run ended, faults included; a bug in mpt is marked in the folder and raised."""
    try:
        return go()
    except KeyboardInterrupt:
        return Ending("INTERRUPTED", ExitCode.SIGINT, "stopped at once by a second Ctrl-C; resume=auto goes on")
    except MptError as error:
        return Ending("FAILED", error.exit_code if isinstance(error, RunFault) else ExitCode.FAULT, str(error))
    except BaseException as error:
        ending = ending_of(error)
        if ending is not None:
            return ending
        with suppress(MptError):
            writer.finish("FAILED", f"{type(error).__name__}: {error}")
        raise
