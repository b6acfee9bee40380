"""The jobs of a sweep: comma lists multiplied out by Hydra's own sweeper, each job composed and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from mpt.config.check import check
from mpt.config.compose import words
from mpt.config.compose._run import compose
from mpt.config.compose.hydra_app import requoted, run_hydra
from mpt.config.compose.session import Session, session, shared_session
from mpt.config.schema import RunConfig
from mpt.errors import ConfigError, Problem

_NOT_SWEPT = {
    "run_dir": "each job has its own folder under hydra.sweep.dir: set hydra.sweep.dir=…",
    "hydra/sweeper": "this version has Hydra's basic sweeper only",
}


@dataclass(frozen=True)
class Job:
    """One run of a sweep; `words` are the overrides that Hydra hands it."""

    number: int
    words: tuple[str, ...]
    config: RunConfig

    @property
    def label(self) -> str:
        return " ".join(self.words)


def plan_jobs(typed: list[str], config_dir: str | None) -> list[Job]:
    """Every job, composed and checked; nothing is written.

    Raises: ConfigError with the problems of all jobs, each once.
    """
    words.refuse_torn(typed)
    refused = [
        Problem(key, "has no place in a sweep", hint) for key, hint in _NOT_SWEPT.items() if words.names(typed, key)
    ]
    if refused:
        raise ConfigError(*refused)
    with shared_session(config_dir) as hydra:
        rows = _rows(typed, hydra)
        if not rows:
            raise ConfigError(Problem("--multirun", "makes no job: a range is empty", "key=range(0,5) is 0 to 4"))
        _refuse_one_folder(typed, len(rows))
        made = [_composed(row, config_dir) for row in rows]
    # resume=auto looks into each job's own folder; elsewhere the folder is one that is not there yet.
    looks = any(isinstance(config, RunConfig) and config.resume == "auto" for config in made)
    folder = sweep_dir(typed, config_dir) if looks else None
    problems: dict[Problem, list[int]] = {}
    jobs = []
    for number, (row, config) in enumerate(zip(rows, made, strict=True)):
        if isinstance(config, RunConfig):
            jobs.append(Job(number, row, config))
        for problem in _problems(config, folder / str(number) if folder else None):
            problems.setdefault(problem, []).append(number)
    if problems:
        raise ConfigError(*(_placed(problem, numbers, rows) for problem, numbers in problems.items()))
    return jobs


def _refuse_one_folder(typed: list[str], jobs: int) -> None:
    """Raises: ConfigError where several jobs would write into one folder."""
    for word in map(words.split, typed):
        if word.key == "hydra.sweep.subdir" and jobs > 1 and "${" not in (word.text or ""):
            hint = "leave it away, or let it name the job: 'hydra.sweep.subdir=${hydra.job.num}'"
            raise ConfigError(Problem(word.key, f"got `{word.text}`, one folder for {jobs} jobs", hint))


def _rows(typed: list[str], hydra: Session) -> list[tuple[str, ...]]:
    """The overrides of each job, in Hydra's order."""
    parser = OverridesParser.create(hydra.loader)
    overrides: list[Override] = []
    problems = []
    for raw, line in zip(typed, requoted(typed, multirun=True), strict=True):
        word = words.split(raw)
        if word.hydra:
            continue
        parsed = words.misshapen(word, lambda _: None) or words.parse(line, word, parser)
        if isinstance(parsed, Problem):
            problems.append(parsed)
        else:
            parsed.config_loader = hydra.loader  # a glob is over its choices
            overrides.append(parsed)
    if problems:
        raise ConfigError(*problems)
    try:
        return [tuple(row) for row in BasicSweeper.split_arguments(overrides, None)[0]]
    except HydraException as error:
        raise ConfigError(Problem("--multirun", str(error), "sweep over a list: key=a,b or key=range(0,5)")) from None


def _composed(row: tuple[str, ...], config_dir: str | None) -> RunConfig | list[Problem]:
    try:
        return compose(list(row), config_dir)
    except ConfigError as error:
        return list(error.problems)


def _problems(config: RunConfig | list[Problem], run_dir: Path | None) -> list[Problem]:
    """What is wrong with one job."""
    if isinstance(config, list):
        return config
    found = check(replace(config, run_dir=str(run_dir)) if config.resume == "auto" else config)
    if config.checkpoint.dir is not None:
        hint = "leave it away: each job's checkpoints lie in its own folder, under hydra.sweep.dir=…"
        found.append(Problem("checkpoint.dir", f"got `{config.checkpoint.dir}`, one folder for all jobs", hint))
    return found


def _placed(problem: Problem, numbers: list[int], rows: list[tuple[str, ...]]) -> Problem:
    """The problem, with the job where only some have it."""
    if len(numbers) == len(rows):
        return problem
    return replace(problem, what=f"{problem.what} (in job {numbers[0]}: {' '.join(rows[numbers[0]])})")


def sweep_dir(typed: list[str], config_dir: str | None) -> Path:
    """Where the sweep will lie; nothing is made.

    Raises: ConfigError for words to Hydra that it does not take, and for a named folder that is in use.
    """
    to_hydra = [raw for raw in typed if words.split(raw).hydra]
    try:
        with session(config_dir) as hydra:
            folder = Path(str(hydra.compose(requoted(to_hydra, multirun=True))["hydra"]["sweep"]["dir"]))
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error
        raise ConfigError(Problem(" ".join(to_hydra), str(cause).splitlines()[0], _hint(to_hydra))) from None
    named = words.names(typed, "hydra.sweep.dir")
    if named and folder.exists() and any(folder.iterdir()) and not words.names(typed, "resume"):
        hint = "name a new one, or go on with its jobs: --continue"
        raise ConfigError(Problem("hydra.sweep.dir", f"`{folder}` is not empty", hint))
    return folder


def swept_keys(jobs: list[Job]) -> list[str]:
    """Keys of words that are not the same in all jobs."""
    values: dict[str, set[str | None]] = {}
    for job in jobs:
        for word in map(words.split, job.words):
            values.setdefault(word.key, set()).add(word.text)
    return [key for key, texts in values.items() if len(texts) > 1]


def _hint(to_hydra: list[str]) -> str:
    """Launchers come in extras."""
    for raw in to_hydra:
        word = words.split(raw)
        if word.key == "hydra/launcher":
            package = "submitit" if "submitit" in (word.text or "") else "joblib"
            install = f"pip install hydra-{package}-launcher 'hydra-core>=1.3.8,<1.4'"
            return f"launchers are joblib and submitit_slurm; this one needs {install}"
    return "see `mpt train --cfg hydra`"


def launch(
    typed: list[str], config_dir: str | None, jobs: list[Job], folder: Path, run: Callable[[Job, Path], None]
) -> None:
    """Hands the jobs to Hydra's launcher; `run` gets each with its own folder below `folder`, which may be there."""

    def task(_: object) -> None:
        own = HydraConfig.get()
        job = jobs[own.job.num]
        given = tuple(_forced(word) for word in job.words)
        assert tuple(own.overrides.task) == given, "Hydra and plan_jobs multiply out alike"
        run(job, Path(own.runtime.output_dir))

    place = [] if config_dir is None else ["--config-dir", config_dir]
    others = [raw for raw in typed if words.split(raw).key != "hydra.sweep.dir"]
    where = f"hydra.sweep.dir={words.quoted(str(folder), False)}"
    run_hydra(["--multirun", *place, *map(_forced, requoted(others, multirun=True)), where], task)


def _forced(raw: str) -> str:
    """The word, with Hydra's leave to add keys inside a mapping (model.kwargs.x=1, model.kwargs={x: 1})."""
    word = words.split(raw)
    inside = word.key.count(".") > 1 or ("." in word.key and (word.text or "").lstrip().startswith("{"))
    return raw if word.hydra or not inside else f"++{raw.lstrip('+')}"


def fresh_folder(folder: Path) -> Path:
    """`folder`, or where another sweep began in the same second, `folder-2`, …; made, so that it is ours."""
    number = 1
    while True:
        path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            continue
        return path
