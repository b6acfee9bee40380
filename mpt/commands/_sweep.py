"""`mpt train --multirun`: all jobs are checked before the first starts; one that fails does not stop the others."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from mpt.config.compose.sweep import Job, launch, plan_jobs, sweep_dir
from mpt.config.schema import RunConfig
from mpt.errors import ExitCode, MptError

_STATUS = {
    ExitCode.FINISHED: "finished",
    ExitCode.BUG: "bug in mpt",
    ExitCode.REFUSED: "refused",
    ExitCode.DIVERGED: "diverged",
    ExitCode.FAULT: "fault",
    ExitCode.SIGINT: "interrupted",
    ExitCode.SIGTERM: "terminated",
}


class Stopped(KeyboardInterrupt):
    """A job was interrupted: the sweep ends with it. Hydra lets this class pass."""


@dataclass
class Sweep:
    """Outcomes of jobs, in the order in which they ran."""

    train: Callable[[RunConfig, list[str]], int]
    argv: list[str]
    outcomes: list[tuple[Job, int, Path]] = field(default_factory=list)

    def run(self, job: Job, folder: Path) -> None:
        """Trains one job and notes how it ended. Raises: Stopped when it was interrupted."""
        print(f"\njob {job.number}: {job.label or 'defaults'}", file=sys.stderr)
        code = self._code(job, folder)
        self.outcomes.append((job, code, folder))
        if code in (ExitCode.SIGINT, ExitCode.SIGTERM):
            raise Stopped(code)

    def _code(self, job: Job, folder: Path) -> int:
        try:
            return self.train(replace(job.config, run_dir=str(folder)), self.argv)
        except MptError as error:
            print(error, file=sys.stderr)
            return int(error.exit_code)
        except KeyboardInterrupt:
            return int(ExitCode.SIGINT)
        except Exception:  # a bug in one job must not take the others' results away
            traceback.print_exc()
            return int(ExitCode.BUG)

    @property
    def code(self) -> int:
        """130 or 143 when it was stopped, 4 when a job did not finish, else 0."""
        codes = [code for _, code, _ in self.outcomes]
        for stopped in (ExitCode.SIGINT, ExitCode.SIGTERM):
            if stopped in codes:
                return int(stopped)
        return int(ExitCode.JOBS_FAILED if any(codes) else ExitCode.FINISHED)


def sweep(words: list[str], config_dir: str | None, argv: list[str]) -> int:
    """Runs every job of the sweep; the exit code.

    Raises: ConfigError, with nothing written, when any job can't be had.
    """
    jobs = plan_jobs(words, config_dir)
    folder = sweep_dir(words, config_dir)
    from mpt.train.run import train

    made = Sweep(train, argv)
    try:
        launch(words, config_dir, jobs, folder, made.run)
    except Stopped:
        pass
    except KeyboardInterrupt:
        made.outcomes.append((jobs[len(made.outcomes)], int(ExitCode.SIGINT), Path()))
    _print(made, len(jobs))
    return made.code


def _print(made: Sweep, total: int) -> None:
    from mpt.commands._console import console, table

    shown = table("job", "overrides", "status", "exit", "folder", title=f"{len(made.outcomes)} of {total} jobs ran")
    for job, code, folder in made.outcomes:
        status = _STATUS[ExitCode(code)]
        shown.add_row(str(job.number), job.label, status, str(code), _short(folder))
    out = console(stderr=True)
    out.print()
    out.print(shown)


def _short(folder: Path) -> str:
    """As the user would type it from here."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
