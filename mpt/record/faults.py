"""Disk trouble told to people: the file, the cause, the next move."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpt.errors import MptError, Problem, RunFault

_HINTS = {
    errno.ENOSPC: "free some space, or choose another disk with run_dir=… ; the same command with resume=auto goes on",
    errno.EDQUOT: "the disk quota is used up: free some space, or choose another disk with run_dir=…",
    errno.EACCES: "make the folder writable, or choose another with run_dir=…",
    errno.EPERM: "make the folder writable, or choose another with run_dir=…",
    errno.EROFS: "the file system is mounted read-only: choose another with run_dir=…",
    errno.ENOENT: "the folder was moved or deleted while the run was going",
    errno.ESTALE: "the network file system lost the folder: mount it again",
    errno.ENAMETOOLONG: "choose a shorter name=… or run_dir=…",
    errno.EEXIST: "choose another run_dir=…",
    errno.ENOTDIR: "a part of the path is a file: choose another run_dir=…",
}


def problem(path: Path, error: OSError) -> Problem:
    """What went wrong with `path`, with a hint for the causes that people meet."""
    cause = error.strerror or str(error) or type(error).__name__
    return Problem(str(path), cause[0].lower() + cause[1:], _HINTS.get(error.errno or 0, ""))


@contextmanager
def faults(path: Path, kind: type[MptError] = RunFault) -> Iterator[None]:
    """An OSError inside becomes `kind`, which names the file of the error, else `path`."""
    try:
        yield
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else None
        raise kind(problem(Path(name) if name else path, error)) from error
