"""Reports on disk: whole, or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from mpt.errors import ConfigError, Problem


def require_writable(flag: str, path: Path, *, folder: bool) -> None:
    """Asked before the work whose result goes there; `folder`: whether `path` is to be one.

    Raises: ConfigError where nothing can be written, with what is in the way.
    """
    inside = path if folder else path.absolute().parent
    there = next(p for p in (inside.absolute(), *inside.absolute().parents) if p.exists())
    if not folder and path.is_dir():
        raise ConfigError(Problem(flag, f"`{path}` is a folder, want a file", f"e.g. {flag} {path / 'page.html'}"))
    if not there.is_dir():
        raise ConfigError(Problem(flag, f"`{path}` can't be written: `{there}` is no folder", "name another place"))
    device = path.exists() and not path.is_file() and not folder
    if not os.access(path if device else there, os.W_OK if device else os.W_OK | os.X_OK):
        what = f"`{path}` can't be written: no permission in `{there}`"
        raise ConfigError(Problem(flag, what, "name a place that is yours, e.g. below your home folder"))


def write_reports(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """The files that were written; a folder that can't be written to is told, and is no reason to show nothing."""
    written = []
    for name, text in texts.items():
        path = folder / name
        temp = path.with_name(f".{name}.tmp")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # /dev/stdout: written to, never replaced by a file
                path.write_text(text, encoding="utf-8", errors="replace")
            else:
                temp.write_text(text, encoding="utf-8", errors="replace")
                temp.replace(path)
            written.append(path)
        except OSError as error:
            print(f"{path} was not written: {error.strerror}", file=sys.stderr)
    return written
