"""Reads a run folder without torch, whatever state it was left in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mpt.errors import Problem, RecordError, first_line
from mpt.record.columns import Steps, parse_rows, parse_steps, read_lines
from mpt.record.folder import EVALS, EVENTS, MARKERS, NUMERICS, SCHEMAS, STEPS, holds_run
from mpt.record.lock import is_held
from mpt.record.strict import dumps, loads

if TYPE_CHECKING:
    from mpt.record.numerics import Numerics

__all__ = ["RUNNING", "UNFINISHED", "RunData", "Steps", "dumps", "read_run"]

RUNNING, UNFINISHED = "running", "unfinished"
"""Status of a run without a marker: a process of this machine is writing it, or none that can be seen is."""

_FRESH_S = 60


@dataclass(frozen=True)
class RunData:
    """A run as its folder tells it. `status` is done, failed, diverged, interrupted, running or unfinished.

    Documents that are not there are empty. `flaws` names everything that was skipped, and why.
    """

    path: Path
    status: str
    reason: str
    config: dict[str, Any]
    plan: dict[str, Any]
    env: dict[str, Any]
    audit: dict[str, Any]
    summary: dict[str, Any]
    steps: Steps
    events: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    source: str
    flaws: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's name, else its folder's."""
        for document in (self.summary, self.plan, self.config):
            if isinstance(document.get("name"), str) and document["name"]:
                return str(document["name"])
        return self.path.name

    @property
    def numerics(self) -> Numerics:
        """Statistics of tensors, read when they are first asked for: they may be long."""
        try:
            stat = (self.path / NUMERICS).stat()
        except OSError:
            return _numerics(self.path, 0, 0)
        return _numerics(self.path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _numerics(path: Path, size: int, modified_ns: int) -> Numerics:
    """numerics.jsonl as it was then; several parts of a report ask for it."""
    from mpt.record.numerics import Numerics, numerics_of  # numpy: who asks has it anyway

    if not size:
        return Numerics()
    flaws: list[str] = []
    rows, bad = parse_rows(_jsonl(path, NUMERICS, flaws))
    found = numerics_of(rows)
    return Numerics(found.looks, found.bad + bad + len(flaws))


def read_run(dir: Path | str) -> RunData:
    """The run in `dir`; torn lines, missing and damaged documents are left out and named in `flaws`.

    Raises: RecordError when `dir` holds no run, or its steps are of a schema that this version can't read.
    """
    path = Path(dir)
    _check_folder(path)
    flaws: list[str] = []
    lines = _jsonl(path, STEPS, flaws)
    steps, bad = parse_steps(lines)
    _tell(flaws, STEPS, bad)
    rows = {}
    for name in (EVENTS, EVALS):
        rows[name], bad = parse_rows(_jsonl(path, name, flaws))
        _tell(flaws, name, bad)
    documents = {name: _document(path / f"{name}.json", flaws) for name in ("plan", "env", "audit", "summary")}
    counted = documents["summary"].get("steps")
    if isinstance(counted, int) and len(steps) < counted:
        flaws.append(f"{STEPS} has {len(steps):,} of the {counted:,} steps that summary.json counts: lines were lost")
    status, reason = _status(path)
    return RunData(
        path=path,
        status=status,
        reason=reason,
        config=_config(path / "config.yaml", flaws),
        steps=steps,
        events=rows[EVENTS],
        evals=rows[EVALS],
        source=_text(path / "source.txt"),
        flaws=tuple(flaws),
        **documents,
    )


def _check_folder(path: Path) -> None:
    hint = "give the folder of an mpt run"
    if not path.exists():
        raise RecordError(Problem(str(path), "there is no such folder", hint))
    if not path.is_dir():
        raise RecordError(Problem(str(path), "is a file", hint))
    if not holds_run(path):
        runs = sorted(p.parent for p in path.glob(f"*/{STEPS}"))[:3]
        near = f"{hint}: " + ", ".join(str(p) for p in runs) if runs else hint
        raise RecordError(Problem(str(path), "holds no run of mpt", near))


def _jsonl(path: Path, name: str, flaws: list[str]) -> list[bytes]:
    if not (path / name).exists():
        flaws.append(f"{name} is missing")
        return []
    if (path / name).stat().st_size == 0:
        flaws.append(f"{name} is empty")
        return []
    try:
        lines, torn = read_lines(path / name, SCHEMAS[name])
    except RecordError as error:
        if name == STEPS:
            raise
        flaws.append(f"{name} is left out: {error.problems[0].what}")
        return []
    if torn:
        flaws.append(f"{name}: a torn last line was skipped")
    return lines


def _tell(flaws: list[str], name: str, bad: int) -> None:
    if bad:
        flaws.append(f"{name}: {bad} line{'s' if bad > 1 else ''} that can't be read or are out of order were skipped")


def _document(path: Path, flaws: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        document = loads(path.read_bytes())
    except (OSError, ValueError) as error:
        flaws.append(f"{path.name} can't be read ({error})")
        return {}
    if not isinstance(document, dict):
        flaws.append(f"{path.name} is not an object")
        return {}
    schema = document.get("schema", f"mpt.{path.stem}/1")
    if schema != f"mpt.{path.stem}/1":
        flaws.append(f"{path.name} is of schema {schema}, this version reads mpt.{path.stem}/1: left out")
        return {}
    return document


def _config(path: Path, flaws: list[str]) -> dict[str, Any]:
    if not path.exists():
        flaws.append(f"{path.name} is missing")
        return {}
    try:
        config = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        flaws.append(f"{path.name} can't be read ({first_line(error)})")
        return {}
    return config if isinstance(config, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _status(path: Path) -> tuple[str, str]:
    for marker in MARKERS:
        try:
            return marker.lower(), (path / marker).read_text(errors="replace").strip()
        except OSError:
            continue
    steps = path / STEPS
    if not steps.is_file():
        return UNFINISHED, "it never started"
    if is_held(steps):
        return RUNNING, "it is still going"
    age_s = time.time() - steps.stat().st_mtime
    if age_s < _FRESH_S:
        return UNFINISHED, f"no marker of an end; the last line is {max(age_s, 0):.0f} s old"
    return UNFINISHED, "killed, or still going on another machine: there is no marker of an end"
