"""The user's own packages, imported before anything is looked up."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from mpt.errors import Problem


def import_plugins(names: list[str]) -> list[Problem]:
    """What could not be imported; a package may lie in the current folder."""
    if not names:
        return []
    here = str(Path.cwd())
    if here not in sys.path:
        # Last, so that nothing in the user's folder hides an installed package.
        sys.path.append(here)
    return [problem for problem in map(_import, names) if problem]


def _import(name: str) -> Problem | None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        what = f"`{name}` can't be imported: {error}"
        return Problem("plugins", what, "name installed packages, or ones in this folder")
    return None
