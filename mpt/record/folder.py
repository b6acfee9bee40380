"""Names in a run folder, and how a fresh one comes to be."""

from __future__ import annotations

import os
import re
from datetime import datetime
from itertools import count
from pathlib import Path

from mpt.errors import RecordError
from mpt.record.faults import faults

STEPS, EVENTS, EVALS, NUMERICS = "steps.jsonl", "events.jsonl", "evals.jsonl", "numerics.jsonl"
SCHEMAS = {STEPS: "mpt.steps/1", EVENTS: "mpt.events/1", EVALS: "mpt.evals/1", NUMERICS: "mpt.numerics/1"}
MARKERS = ("DONE", "FAILED", "DIVERGED", "INTERRUPTED")
CHECKPOINTS = "checkpoints"
DOCUMENTS = ("config.yaml", "plan.json", "env.json", "source.txt", "audit.json", "summary.json")
OURS = (STEPS, EVENTS, EVALS, NUMERICS, *DOCUMENTS, *MARKERS, CHECKPOINTS)
"""Any of these makes a folder one that holds a run."""

_NAME_LIMIT = 80


def safe_name(name: str) -> str:
    """The name as a folder's: letters, digits, `.`, `-`, `_` and `+`; never `=` or `,`, never hidden."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:_NAME_LIMIT] or "run"


def new_run_dir(root: Path, name: str, now: datetime | None = None) -> Path:
    """A folder that this call alone has made: `root/2026-11-29/14-03-22_name`, else with `-2`, `-3`, ….

    Raises: RecordError where it can't be made.
    """
    now = now or datetime.now()
    day = root / now.strftime("%Y-%m-%d")
    stem = f"{now:%H-%M-%S}_{safe_name(name)}"
    with faults(day, RecordError):
        day.mkdir(parents=True, exist_ok=True)
        for n in count(1):
            path = day / (stem if n == 1 else f"{stem}-{n}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    raise AssertionError("count() has no end")


def holds_run(path: Path) -> list[str]:
    """Names in `path` that belong to a run; empty where there is none."""
    return [name for name in OURS if os.path.lexists(path / name)]


def sync_folder(path: Path) -> None:
    """New names in the folder survive a power loss (where folders can be synced)."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:  # some network file systems refuse fsync on folders; the files themselves were synced
        pass
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """`path` holds `data` whole, or what it held before. Raises: OSError."""
    temp = path.with_name(f".{path.name}.tmp")
    try:
        with temp.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
    except OSError:
        temp.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
