"""One file for each part of a comparison, in the order of SECTIONS."""

from __future__ import annotations

from mpt.report.compare.comparison import Comparison
from mpt.report.compare.sections import differences, parting, runs, scaling, speed, verdict
from mpt.report.section import Section

SECTIONS = (verdict, speed, scaling, parting, differences, runs)


def sections(made: Comparison) -> list[Section]:
    """All parts that have something to say."""
    return [section for part in SECTIONS if (section := part.section(made)) is not None]
