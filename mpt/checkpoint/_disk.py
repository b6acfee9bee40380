"""Writes and removals that are on disk when they return."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mpt.errors import Problem, RunFault


def remove(path: Path) -> None:
    """Nothing has that name; of a link, what it points to stays. Raises: OSError."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


def dump(state: Mapping[str, Any], path: Path) -> None:
    """The state is on disk, as torch saves it. Raises: OSError."""
    try:
        with path.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # torch's zip writer turns a short write into this
        cause = error.__context__ if isinstance(error.__context__, OSError) else None
        raise OSError(cause.errno if cause else 0, (cause and cause.strerror) or str(error), str(path)) from error


def write(path: Path, data: bytes) -> None:
    """The bytes are on disk. Raises: OSError."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Names in the folder are on disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:  # some network file systems refuse fsync on folders
        pass
    finally:
        os.close(fd)


def fault(path: Path, error: OSError) -> RunFault:
    """What went wrong, and what to do."""
    what = f"the checkpoint could not be saved: {error.strerror or error}"
    if error.errno == errno.ENOENT:
        return RunFault(Problem(str(path), what, "the folder was moved or deleted while the run was going"))
    hint = "older checkpoints are intact; free space or make the folder writable, then go on with resume=auto"
    return RunFault(Problem(str(path), what, hint))
