"""A sweep from its words to its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from mpt.commands._sweep.board import Board
from mpt.commands._sweep.folder import FINISHED, SWEEP, WAITING, State, SweepFolder, is_done, newest
from mpt.commands._sweep.job import Runner, Stopped, stopping_all
from mpt.config.compose import words as typed_words
from mpt.config.compose.sweep import Job, fresh_folder, launch, plan_jobs, sweep_dir, swept_keys
from mpt.errors import ConfigError, ExitCode, Problem

_ROOT = Path("outputs") / "sweeps"


@dataclass(frozen=True)
class Request:
    """What was typed. `going_on`: run what is missing or failed of a sweep that is there."""

    words: tuple[str, ...]
    config_dir: str | None
    argv: tuple[str, ...]
    in_process: bool = False
    fail_fast: bool = False
    going_on: bool = False


def sweep(request: Request) -> tuple[int, Path]:
    """Runs every job; the exit code and the sweep's folder.

    Raises: ConfigError, with nothing written, when any job can't be had.
    """
    if request.going_on:
        request, place = _found(request)
        jobs = plan_jobs(list(request.words), request.config_dir)
        _check_same(jobs, place)
    else:
        jobs = plan_jobs(list(request.words), request.config_dir)
        place = sweep_dir(list(request.words), request.config_dir)
        if not typed_words.names(request.words, "hydra.sweep.dir"):
            place = fresh_folder(place)
    return _run(request, jobs, place.absolute())


def _run(request: Request, jobs: list[Job], place: Path) -> tuple[int, Path]:
    swept = swept_keys(jobs)
    labels = [_label(job, swept) for job in jobs]
    folder = SweepFolder(place)
    axis = [key for key in swept if key != "seed"]
    folder.create(request.words, request.config_dir, [job.label for job in jobs], axis)
    folder.stop(False)
    _forget_failures(folder, labels, place)
    runner = Runner(
        place, tuple(labels), request.argv, request.config_dir, request.in_process, request.fail_fast, request.going_on
    )
    board = Board(folder, labels, live=not request.in_process)
    stopped = None
    with board:
        try:
            _start(request, jobs, place, runner, folder)
        except Stopped as stop:
            stopped = int(stop.args[0])
        except KeyboardInterrupt:
            stopped = int(ExitCode.SIGINT)
    board.print()
    return _code(folder.states(labels), stopped), place


def _label(job: Job, swept: Sequence[str]) -> str:
    """The words that tell the job from the others."""
    return " ".join(w for w in job.words if typed_words.split(w).key in swept) or job.label or "defaults"


def _start(request: Request, jobs: list[Job], place: Path, runner: Runner, folder: SweepFolder) -> None:
    """By Hydra's launcher; in this process without it, which would take twice the time of a small job's set-up."""
    to_hydra = [w for w in map(typed_words.split, request.words) if w.hydra and w.key != "hydra.sweep.dir"]
    if request.in_process and not to_hydra:
        for job in jobs:
            runner(job, place / str(job.number))
    else:
        with stopping_all(folder, runner.labels) if not request.in_process else nullcontext():
            launch(list(request.words), request.config_dir, jobs, place, runner)


def _forget_failures(folder: SweepFolder, labels: list[str], place: Path) -> None:
    """Jobs that will run again stand as waiting; those that are done as finished, whatever stopped their process."""
    for state in folder.states(labels):
        if not is_done(Path(state.folder) if state.folder else place / str(state.number)):
            folder.put(State(state.number, state.label, WAITING))
        elif state.failed:
            folder.put(replace(state, status=FINISHED, exit_code=int(ExitCode.FINISHED), reason=""))


def _code(states: Sequence[State], stopped: int | None) -> int:
    """130 or 143 when it was stopped, 4 when a job did not finish, else 0."""
    if stopped is not None:
        return stopped
    return int(ExitCode.JOBS_FAILED if any(s.exit_code != 0 for s in states) else ExitCode.FINISHED)


def _found(request: Request) -> tuple[Request, Path]:
    """The sweep to go on with, and the request with its words where none were typed."""
    named = [w.text for w in map(typed_words.split, request.words) if w.key == "hydra.sweep.dir" and w.text]
    folders = [word for word in request.words if (Path(word) / SWEEP).is_file()]
    strays = [word for word in request.words if word not in folders and "=" not in word]
    if strays:
        what = "is no folder of a sweep" if Path(strays[0]).exists() else "there is no such folder"
        near = newest(_ROOT)
        hint = f"the newest sweep here is {near}" if near else "give the sweep's folder, which holds sweep.json"
        raise ConfigError(Problem(f"--continue {strays[0]}", what, hint))
    place = Path(named[0]) if named else Path(folders[0]) if folders else newest(_ROOT)
    if place is None:
        raise ConfigError(Problem("--continue", f"there is no sweep in {_ROOT}", "name its folder: --continue DIR"))
    asked = SweepFolder(place).asked()
    if asked.get("cwd") != str(Path.cwd()):
        hint = f"go on from there: paths in its words may be relative (cd {asked.get('cwd')})"
        raise ConfigError(Problem(str(place), f"was started in {asked.get('cwd')}", hint))
    typed = tuple(w for w in request.words if w not in folders and not w.startswith("hydra.sweep.dir="))
    words = typed or tuple(w for w in asked["words"] if not w.startswith("hydra.sweep.dir="))
    config_dir = request.config_dir or asked.get("config_dir")
    return (
        Request(
            words, config_dir, request.argv, in_process=request.in_process, fail_fast=request.fail_fast, going_on=True
        ),
        place,
    )  # fmt: skip


def _check_same(jobs: list[Job], place: Path) -> None:
    """Raises: ConfigError when the words make other jobs than the sweep has."""
    before = SweepFolder(place).asked()["jobs"]
    if before != [job.label for job in jobs]:
        what = f"has {len(before)} jobs, of which these words make {sum(j.label in before for j in jobs)}"
        raise ConfigError(Problem(str(place), what, "say only --continue: the sweep knows its words"))
