"""The report as one JSON document, for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpt.report.section import Section

SCHEMA = "mpt.report/1"


def to_json(sections: Sequence[Section], path: Path) -> dict[str, Any]:
    """The data of every section under its key."""
    return {"schema": SCHEMA, "path": str(path), **{s.key: dict(s.data) for s in sections}}
