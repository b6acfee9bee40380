"""One file for each part of a report, in the order of SECTIONS."""

from __future__ import annotations

from mpt.record.reader import RunData
from mpt.report.section import Section
from mpt.report.sections import (
    advice,
    configuration,
    evaluations,
    events,
    headline,
    memory,
    numerics,
    precision,
    profile,
    scaling,
    speed,
)

SECTIONS = (
    headline, precision, speed, profile, memory, scaling, events, advice, numerics, evaluations, configuration,
)  # fmt: skip


def sections(run: RunData) -> list[Section]:
    """All parts that have something to say about the run."""
    return [section for part in SECTIONS if (section := part.section(run)) is not None]
