"""Loss scale and skipped steps of each configuration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mpt.report.compare.brief import Brief
from mpt.report.compare.comparison import Comparison
from mpt.report.section import Section, Table, clean, get, number
from mpt.report.sections.scaling import noun
from mpt.units import counted, number_text


def section(made: Comparison) -> Section | None:
    rows = [(clean(config.label), *_cells(config.runs)) for config in made.configs]
    if all(row[1] in ("none", "unknown") and row[2] == "0" for row in rows):
        return None
    columns = ("configuration", "strategy", "skipped", "causes", "scale, least to largest", "last", "non-finite losses")
    return Section("scaling", "Loss scale and skipped steps", tables=(Table(columns, tuple(rows), right=(2, 4, 5, 6)),))


def scale_range(runs: Sequence[Brief]) -> tuple[float, float, float]:
    """Least, largest and last scale over the runs; NaN where there is none."""
    values = np.concatenate([run.curves.scale.values for run in runs])
    known = values[np.isfinite(values)]
    last = runs[-1].curves.scale.values
    return (float(known.min()), float(known.max()), float(last[-1])) if len(known) else (math.nan,) * 3


def _cells(runs: Sequence[Brief]) -> tuple[str, ...]:
    names = {
        clean(get(r.data.summary, "scaling", "strategy") or get(r.data.plan, "scaling") or "unknown") for r in runs
    }
    skipped, steps = sum(run.curves.skip_count for run in runs), sum(len(run.loss) for run in runs)
    causes = Counter(clean(skip.cause) for run in runs for skip in run.curves.skips)
    least, largest, last = scale_range(runs)
    return (
        ", ".join(sorted(names)),
        f"{skipped:,} ({skipped / steps:.2%})" if skipped else "0",
        ", ".join(counted(count, *noun(cause)) for cause, count in causes.most_common()) or "-",
        f"{number_text(least)} to {number_text(largest)}",
        number_text(last),
        f"{sum(run.curves.nonfinite_count for run in runs):,}",
    )


def skipped_share(runs: Sequence[Brief]) -> float | None:
    """Share of skipped steps over the runs' summaries."""
    pairs = [(number(r.data.summary, "skipped"), number(r.data.summary, "steps")) for r in runs]
    known = [(a, b) for a, b in pairs if a is not None and b]
    return sum(a for a, _ in known) / sum(b for _, b in known) if known else None
