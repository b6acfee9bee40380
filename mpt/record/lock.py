"""One writer for a run folder: a POSIX record lock, which dies with its process and is not inherited."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from mpt.errors import Problem, RecordError

_HELD = (errno.EACCES, errno.EAGAIN)


def claim(fd: int, dir: Path) -> None:
    """Make this process the writer. Raises: RecordError when another process on this machine is.

    File systems without locks (some network ones) are let pass.
    """
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            hint = "wait for it to end, or choose another run_dir=…"
            raise RecordError(Problem(str(dir), "another mpt process is writing this run", hint)) from error


def is_held(path: Path) -> bool:
    """Whether another process on this machine is writing the run whose steps file is `path`."""
    if sys.platform == "win32":
        return False
    import fcntl

    with path.open("rb") as file:
        try:
            fcntl.lockf(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in _HELD
    return False
