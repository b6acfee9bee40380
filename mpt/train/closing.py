"""The last lines of a run: how it ended, what it reached, what was lost on the way, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from mpt.errors import ExitCode, printable
from mpt.train.lost import vanished
from mpt.train.progress import Ending
from mpt.train.state import Course
from mpt.units import counted, number_text, seconds_text

SHOWN = 3
"""Unreadable samples that are named."""


def last_lines(course: Course, ending: Ending, run_dir: Path, argv: list[str]) -> Iterator[str]:
    """For the terminal; the record has it all."""
    yield f"{ending.status}: {ending.reason}"
    yield ", ".join(_reached(course, ending))
    yield from vanished(course)
    data, skipped = course.run.data, course.run.data.skipped
    if skipped:
        more = f" and {len(skipped) - SHOWN} more" if len(skipped) > SHOWN else ""
        yield printable(f"{counted(len(skipped), 'sample')} could not be read: {', '.join(skipped[:SHOWN])}{more}")
    if data.converted:
        yield "converted samples: " + ", ".join(f"{count:,} {how}" for how, count in data.converted.items())
    yield f"record: {run_dir}"
    yield f"next: {next_command(ending, run_dir, argv)}"


def _reached(course: Course, ending: Ending) -> Iterator[str]:
    progress, task = course.progress, course.run.task
    if progress.best:
        value = number_text(progress.best[task.headline])
        yield f"best {task.headline} {value} at step {progress.best['step']:,.0f}"
    skipped = course.history.totals.skipped
    if skipped:
        up_to = " up to the log point that showed it" if ending.exit_code == ExitCode.DIVERGED else ""
        yield f"{skipped:,} of {course.history.totals.step:,} steps skipped{up_to}"
    yield f"{seconds_text(course.clock.total_s())} in all"


def next_command(ending: Ending, run_dir: Path, argv: list[str]) -> str:
    """What people do after such an end: look, or go on with the same run."""
    if ending.exit_code in (ExitCode.FINISHED, ExitCode.DIVERGED):
        return shlex.join(["mpt", "report", str(run_dir)])
    words = [word for word in argv if not word.startswith(("run_dir=", "resume="))]
    return shlex.join([*words, f"run_dir={run_dir}", "resume=auto"])
