"""One file for each part of a report, in the order of SECTIONS."""

from __future__ import annotations

from mpt.record.reader import RunData
from mpt.report.section import Section
from mpt.report.sections import configuration, evaluations, headline, memory, precision, scaling, speed

SECTIONS = (headline, precision, speed, memory, scaling, evaluations, configuration)


def sections(run: RunData) -> list[Section]:
    """All parts that have something to say about the run."""
    return [part.section(run) for part in SECTIONS]
