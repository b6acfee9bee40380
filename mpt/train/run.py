"""One run from configuration to summary; what the command line calls."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from mpt.build import Run, build, make_plan
from mpt.checkpoint import CheckpointStore, find
from mpt.checkpoint import load as load_checkpoint
from mpt.config import saved
from mpt.config.schema import RunConfig
from mpt.errors import CheckpointError, ExitCode, MptError, Problem
from mpt.plan.facts import probe
from mpt.plan.plan import Plan
from mpt.precision.flags import flags
from mpt.record.folder import new_run_dir
from mpt.record.provenance import environment, source
from mpt.record.writer import RunWriter
from mpt.telemetry.clock import Clock
from mpt.telemetry.console import Console, make_console
from mpt.telemetry.history import History
from mpt.telemetry.memory import MemoryMeter
from mpt.train.engine import Engine, make_engine
from mpt.train.evaluate import evaluate as evaluate_model
from mpt.train.loop import Loop
from mpt.train.outcome import write_summary
from mpt.train.preflight import Preflight, preflight
from mpt.train.progress import Ending, Progress
from mpt.train.resume import Origin, origin
from mpt.train.signals import StopRequest
from mpt.train.state import load_weights, restore


def plan(cfg: RunConfig) -> Plan:
    """What `train(cfg)` would do. Raises: MptError where it can't be done."""
    return make_plan(cfg)


def train(cfg: RunConfig, argv: list[str]) -> int:
    """Train as `cfg` asks; the exit code. The run folder is made once everything is known to fit.

    Raises: MptError with nothing left on disk where the request can't be done.
    """
    clock = Clock(probe(cfg.device).type)
    with StopRequest() as stop, flags(cfg.precision, probe(cfg.device), deterministic=cfg.trainer.deterministic) as seen:
        set_threads(cfg)
        with clock.phase("startup"):
            began = origin(cfg)
            if began.finished:
                print(f"{began.run_dir} is finished already: nothing to do", file=sys.stderr)
                return ExitCode.FINISHED
            run = build(cfg)
            engine = make_engine(run)
            memory = MemoryMeter(run.device)
            history = History(run.lr)
            progress, reset = start(run, engine, began, history, clock)
            seen_first = preflight(run, engine.buffers, next(run.data.train(start=0)))
        return _record(run, engine, seen_first, began, reset, progress, history, clock, memory, stop, argv, seen())
