"""Errors for people: which key or file, what it got, what it wants, and a next move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import groupby


class ExitCode(IntEnum):
    """What the process returns; the table is in the README."""

    FINISHED = 0
    BUG = 1
    REFUSED = 2
    DIVERGED = 3
    JOBS_FAILED = 4
    FAULT = 5
    SIGINT = 130
    SIGTERM = 143


class Stopped(SystemExit):
    """A signal ended the process: nobody's code failed, whatever it was in."""


def printable(text: str) -> str:
    """The text with control characters escaped, so that a file's name can't move a terminal's cursor."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def first_line(error: BaseException) -> str:
    """Of what the error says; its kind where it says nothing, as MemoryError() and many a ValueError() do."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: `where` is a config key, a command-line word or a file."""

    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}"]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return printable("\n".join(lines))


def _listed(problems: Sequence[Problem]) -> str:
    """One paragraph for each; those that follow each other with one hint share it, and a paragraph."""
    groups = [list(group) for _, group in groupby(problems, key=lambda p: p.hint or p)]
    return "\n\n".join("\n".join([*(str(replace(p, hint="")) for p in g[:-1]), str(g[-1])]) for g in groups)


class MptError(Exception):
    """The request can't be done; shown to people without a traceback."""

    exit_code: ExitCode = ExitCode.REFUSED

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(p if isinstance(p, Problem) else Problem("mpt", p) for p in problems)
        super().__init__(str(self))

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        return f"{len(self.problems)} problems\n\n{_listed(self.problems)}"


class ConfigError(MptError):
    """A key, a choice or a combination of them is wrong."""


class PrecisionError(MptError):
    """A number format or policy can't be had as asked."""


class ModelError(MptError):
    """A model can't be built, or does not fit its data or task."""


class DataError(MptError):
    """A data set is missing, empty or unreadable."""


class CheckpointError(MptError):
    """No checkpoint can be used, or it belongs to another model."""


class RecordError(MptError):
    """A run folder can't be read or written as asked."""


class RunFault(MptError):
    """Data, disk or device failed while a run was going; what was saved is intact."""

    exit_code = ExitCode.FAULT
