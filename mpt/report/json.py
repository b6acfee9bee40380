"""The report as one JSON document, for scripts."""

from __future__ import annotations

from typing import Any

from mpt.record.reader import RunData
from mpt.report.sections import sections

SCHEMA = "mpt.report/1"


def to_json(run: RunData) -> dict[str, Any]:
    """The data of every section under its key."""
    return {"schema": SCHEMA, "path": str(run.path), **{s.key: dict(s.data) for s in sections(run)}}
