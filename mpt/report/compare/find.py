"""From the words of a command to run folders: a run, a sweep, or any folder that holds some."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mpt.errors import Problem
from mpt.record.folder import MARKERS, STEPS, holds_run
from mpt.record.strict import loads

_DEPTH = 4
"""Folders below the one given: outputs/sweeps/<date>/<time>/<job>."""

_SIGNS = {STEPS, "summary.json", "config.yaml", *MARKERS}


def run_folders(given: Sequence[str | Path]) -> list[Path]:
    """Every folder to read, each once, in the order given and then by number; those that hold nothing included,
    so that reading them says why."""
    found: dict[Path, Path] = {}
    for word in given:
        path = Path(word)
        inside = [path] if holds_run(path) or not path.is_dir() else list(_below(path, _DEPTH))
        for folder in inside or [path]:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def swept(given: Sequence[str | Path]) -> dict[str, Any]:
    """sweep.json of the one folder given; empty where it is no sweep's."""
    if len(given) != 1:
        return {}
    try:
        document = loads((Path(given[0]) / "sweep.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def lost_jobs(given: Sequence[str | Path]) -> list[Problem]:
    """Jobs of the sweep that left no run, and why."""
    found = []
    for path in sorted(Path(given[0]).glob("jobs/*.json"), key=_natural) if swept(given) else []:
        try:
            state = loads(path.read_bytes())
            left = state["folder"] and holds_run(Path(state["folder"]))
            if state["exit_code"] != 0 and not left:
                found.append(
                    Problem(f"job {state['number']} ({state['label']})", f"{state['status']}: {state['reason']}")
                )
        except (OSError, ValueError, KeyError, TypeError):
            found.append(Problem(str(path), "can't be read"))
    return found


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """Run folders inside; a run's own folders are not looked into."""
    try:
        inner = sorted((Path(e.path) for e in os.scandir(folder) if e.is_dir(follow_symlinks=False)), key=_natural)
    except OSError:
        return
    for path in inner:
        if _is_run(path):
            yield path
        elif depth > 1 and not path.name.startswith("."):
            yield from _below(path, depth - 1)


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in _SIGNS)


def _natural(path: Path) -> list[tuple[int, str]]:
    """10 comes after 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
