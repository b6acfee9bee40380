"""Rules about the world outside the configuration: devices' names, folders, free disk."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from mpt import registry
from mpt.config.data import data_problems
from mpt.config.gpus import GPUS
from mpt.config.schema import RunConfig
from mpt.errors import Problem
from mpt.registry import did_you_mean

MIN_FREE_BYTES = 8 * 2**20
"""The record of 20,000 steps; what the checkpoints of the run take is asked once its model is there."""

DEVICES = ("auto", "cpu", "cuda", "mps")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def device_syntax(cfg: RunConfig) -> Iterator[Problem]:
    """Whether it is there is asked when the run is planned."""
    if not _DEVICE.fullmatch(cfg.device) and cfg.device not in GPUS:
        what = f"got `{cfg.device}`, want auto, cpu, cuda, cuda:N or mps; in plans a GPU's name too"
        hint = "did you mean `cuda`?" if "gpu" in cfg.device.lower() else _near_device(cfg.device)
        yield Problem("device", what, hint)


def _near_device(word: str) -> str:
    hint = did_you_mean(word, (*DEVICES, *GPUS))
    if not hint.startswith("did"):
        return "device=auto takes the fastest there is; mpt list gpus names those that can be planned for"
    return hint if any(f"`{name}`" in hint for name in DEVICES) else f"{hint} mpt list gpus names all"


def start_from(cfg: RunConfig) -> Iterator[Problem]:
    """A run goes on (resume) or starts from weights (init_from), and both name something that is there.

    With resume=auto both make sense: the first try starts from the weights, later ones go on.
    """
    if cfg.resume == "auto":
        if cfg.run_dir is None:
            yield Problem("resume", "`auto` looks in run_dir, which is not given", "name it: run_dir=outputs/mine")
    elif cfg.resume and cfg.init_from:
        what = "both are given: a named resume goes on with a run, init_from starts one from its weights alone"
        yield Problem("resume, init_from", what, "leave one away, or use resume=auto")
    named = {"resume": None if cfg.resume == "auto" else cfg.resume, "init_from": cfg.init_from}
    for key, value in named.items():
        if value and not os.path.exists(value) and not _goes_on(cfg):
            yield Problem(key, f"`{value}` does not exist", _instead(key, Path(value)))


def _instead(key: str, path: Path) -> str:
    """A hint where to look: beside a checkpoint that is not there any more, those that are."""
    there = sorted(found.name for found in path.parent.glob("update-*"))
    if path.name.startswith("update-") and there:
        return f"in {path.parent} there are {', '.join(there)}: older ones are removed (checkpoint.keep)"
    weights = ", or any weights (.pt, .safetensors)" if key == "init_from" else ""
    return f"give a run folder or a checkpoint{weights}; paths are relative to {os.getcwd()}"


def _goes_on(cfg: RunConfig) -> bool:
    """Whether resume finds a run in its own folder."""
    from mpt.record.folder import STEPS

    place = cfg.run_dir if cfg.resume == "auto" else cfg.resume
    if place is None or os.path.abspath(cfg.run_dir or place) != os.path.abspath(place):
        return False
    return os.path.isfile(os.path.join(place, STEPS))


def run_folder(cfg: RunConfig) -> Iterator[Problem]:
    """A run never mixes with what is there."""
    from mpt.record.folder import holds_run

    if cfg.run_dir is None:
        return
    path = Path(cfg.run_dir)
    if path.exists() and not path.is_dir():
        yield Problem("run_dir", f"`{path}` is a file", "name a folder, new or empty")
    elif path.is_dir() and any(path.iterdir()):
        if not holds_run(path):
            yield Problem("run_dir", f"`{path}` is not empty and holds no run", "name a folder, new or empty")
        elif cfg.resume is None:
            yield Problem("run_dir", f"`{path}` holds a run", "resume=auto goes on with it; or name a new folder")


def checkpoint_folder(cfg: RunConfig) -> Iterator[Problem]:
    """A new run's checkpoints never lie among another's, which it would remove or go on from."""
    if cfg.checkpoint.dir is None or _goes_on(cfg):
        return
    folder = Path(cfg.checkpoint.dir).absolute()
    there = sorted(path.name for path in folder.glob("update-*")) if folder.is_dir() else []
    taken = Path(cfg.resume).absolute() if cfg.resume not in (None, "auto") else None
    if there and (taken is None or folder not in (taken, *taken.parents)):
        what = f"`{cfg.checkpoint.dir}` holds checkpoints of another run ({there[-1]})"
        yield Problem("checkpoint.dir", what, "name a new or empty folder; resume=auto goes on with a run's own")


def disk(cfg: RunConfig) -> Iterator[Problem]:
    """Room and permission where the run's records and checkpoints will be written."""
    asked = {"run_dir": cfg.run_dir or "outputs", "checkpoint.dir": cfg.checkpoint.dir}
    for key, value in asked.items():
        if value is None:
            continue
        parent = _existing(Path(value))
        if not os.access(parent, os.W_OK | os.X_OK):
            yield Problem(key, f"`{parent}` can't be written to", f"choose another place: {key}=…")
            continue
        free = shutil.disk_usage(parent).free
        if free < MIN_FREE_BYTES:
            what = f"{free / 2**20:.0f} MiB are free at `{parent}`, want {MIN_FREE_BYTES / 2**20:.0f} or more"
            yield Problem(key, what, f"make room, or choose another place: {key}=…")


def entries(cfg: RunConfig) -> Iterator[Problem]:
    """Every chosen YAML names code that is there."""
    for kind, group, name in (
        ("models", "model", cfg.model.name),
        ("data", "data", cfg.data.name),
        ("tasks", "task", cfg.task.name),
        ("scaling", "scaling", cfg.scaling.rule or cfg.scaling.name),
        ("optim", "optimizer", cfg.optimizer.name),
        ("schedules", "schedule", cfg.schedule.name),
    ):
        known = registry.names(kind)
        if name not in known:
            hint = f"{did_you_mean(name, known)}; a plugin brings its own: plugins=[your_package]"
            yield Problem(f"{group}.name", f"the YAML says `{name}`, and mpt/{kind} has none", hint)


def workers(cfg: RunConfig) -> Iterator[Problem]:
    """Far more decoding processes than CPUs only take memory and time to start."""
    cpus = os.cpu_count() or 1
    most = max(8, 4 * cpus)
    if cfg.data.workers is not None and cfg.data.workers > most:
        what = f"got {cfg.data.workers}, want at most {most} on this machine ({cpus} CPUs)"
        yield Problem("data.workers", what, f"one for each CPU is plenty: data.workers={cpus}")


def data_files(cfg: RunConfig) -> Iterator[Problem]:
    """What the data set itself finds missing, and what was given to it for nothing."""
    if cfg.data.name in registry.names("data"):
        yield from data_problems(cfg.data)


def _existing(path: Path) -> Path:
    """The nearest folder that is there."""
    path = path.absolute()
    return next((p for p in (path, *path.parents) if p.is_dir()), Path(path.anchor))


PLACES = (entries, device_syntax, start_from, run_folder, checkpoint_folder, disk, workers, data_files)
