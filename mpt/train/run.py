"""One run from configuration to summary; what the command line calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

from mpt.checkpoint import CheckpointStore, Saver, load
from mpt.checkpoint.contents import checked
from mpt.checkpoint.saver import Saved
from mpt.config import saved
from mpt.config.schema import RunConfig
from mpt.errors import ExitCode, MptError, RunFault
from mpt.loggers._follow import following
from mpt.plan.compiled import is_compiled
from mpt.plan.facts import probe
from mpt.precision.switches import flags, observed
from mpt.record.folder import new_run_dir
from mpt.record.provenance import environment, source
from mpt.record.writer import RunWriter, past
from mpt.telemetry.clock import Clock
from mpt.telemetry.console import make_console
from mpt.telemetry.memory import MemoryMeter
from mpt.train.begin import make_course, on_device, preflown, require_space
from mpt.train.closing import last_lines
from mpt.train.faults import ending_of
from mpt.train.host import on_host
from mpt.train.loop import Loop
from mpt.train.lost import measure_underflow
from mpt.train.outcome import summarize
from mpt.train.preflight import Preflight
from mpt.train.products import cpu_products
from mpt.train.progress import Ending
from mpt.train.resume import Origin, checkpoint_dir, origin
from mpt.train.signals import StopRequest
from mpt.train.state import Course, changes


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
            course, told = make_course(cfg, clock, start, state)
        plan = course.run.plan
        with on_host(cfg, plan), cpu_products(cfg, plan) as products, closing(course.run.data):
            return _train(course, start, state, [*told, *products], stop, argv)


def _train(
    course: Course, start: Origin, state: dict[str, Any] | None, told: list[str], stop: StopRequest, argv: list[str]
) -> int:
    """From built objects to the marker in the run folder."""
    cfg, run = course.run.cfg, course.run
    with course.clock.phase("startup"):
        memory = MemoryMeter(str(run.device), compiled=is_compiled(cfg, run.plan))
        memory.start()
        seen, batches = preflown(course, memory, told, stop)
        require_space(course)
        writer, run_dir = _open(course, start, state)
        told += writer.lacks(state["offset"]) if state else []
    told_to = following(run_dir, cfg.logger, run.plan.name, cfg.trainer.log_every)
    with writer, make_console() as console, told_to:
        saver = _saver(cfg, run_dir, writer)

        def go() -> Ending:
            _describe(course, writer, seen, source(argv, before=_source_before(start)))
            _begin(course, writer, start, told)
            console.start([*_first_lines(course, start, seen, told), f"record: {run_dir}"])
            loop = Loop(course, batches=batches, writer=writer, saver=saver, console=console, stop=stop, memory=memory)
            with saver:
                return loop.run()

        ending = _closed(course, _ending(go, writer), seen, memory, saver, writer)
        console.finish(list(last_lines(course, ending, run_dir, argv)))
    return ending.exit_code


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


def _source_before(start: Origin) -> str:
    """The source.txt of a run that goes on in its own folder."""
    path = start.reopen / "source.txt" if start.reopen else None
    return path.read_text(errors="replace") if path is not None and path.is_file() else ""


def _describe(course: Course, writer: RunWriter, seen: Preflight, code: str) -> None:
    """Asked, decided, where, exact code and observed formats are on disk."""
    run = course.run
    writer.text("config.yaml", saved.dump(run.cfg))
    writer.json("plan", run.plan.to_json())
    writer.json("env", environment(run.plan.device, observed(), torch.get_num_threads()))
    writer.text("source.txt", code)
    writer.json("audit", seen.document())


def _begin(course: Course, writer: RunWriter, start: Origin, told: list[str]) -> None:
    """The first events are on disk: whether the run is new, and what its data are like."""
    if start.checkpoint is not None:
        step, path = course.history.totals.step, str(start.checkpoint)
        writer.event("resumed", step=step, checkpoint=path, changed=told, passed_over=start.told())
    else:
        writer.event("started", notes=[*told, *start.told()])
    for note in course.run.data.notes:
        writer.event("data", note=note)


def _first_lines(course: Course, start: Origin, seen: Preflight, told: list[str]) -> list[str]:
    """What is shown before the first step."""
    run = course.run
    lines = [*run.plan.lines(), *run.data.notes, *seen.lines(), *told, *start.told()]
    if run.cfg.debug.inject:
        lines.append("faults are put in on purpose (debug.inject): what comes of it is no result")
    if start.checkpoint is not None:
        lines.append(f"goes on after step {course.history.totals.step} from {start.checkpoint}")
    return lines


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


def _closed(
    course: Course, ending: Ending, seen: Preflight, memory: MemoryMeter, saver: Saver, writer: RunWriter
) -> Ending:
    """Summary and marker are on disk; how the run ended, or that they could not be written."""
    if ending.status in ("done", "diverged"):
        measure_underflow(course)
    try:
        writer.json("summary", summarize(course, ending, seen, memory, saver.costs))
        writer.finish(ending.marker, ending.reason)
    except RunFault as fault:  # a disk that fails at the very end takes nothing that was saved
        return Ending("FAILED", fault.exit_code, str(fault))
    return ending
