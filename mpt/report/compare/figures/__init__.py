"""One file for each picture of a comparison."""

from __future__ import annotations

from mpt.report.compare.comparison import Comparison
from mpt.report.compare.figures import forest, pareto
from mpt.report.figure import Figure

FIGURES = (forest, pareto)


def figures(made: Comparison) -> list[Figure]:
    """All pictures that have something to show."""
    return [found for part in FIGURES if (found := part.figure(made)) is not None]
