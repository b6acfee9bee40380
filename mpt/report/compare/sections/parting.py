"""Where each configuration's loss leaves its baseline's."""

from __future__ import annotations

from mpt.report.compare.comparison import Comparison
from mpt.report.section import Section, Table, clean


def section(made: Comparison) -> Section | None:
    rows, bands = [], set()
    for judged, parting in zip(made.judged, made.partings, strict=True):
        if parting is None:
            continue
        bit = "never: every loss is the same number" if parting.first_bit is None else f"step {parting.first_bit:,}"
        step = "never" if parting.first_step is None else f"step {parting.first_step:,}"
        pair = judged.pairing
        rows.append((clean(pair.candidate.label), clean(pair.baseline.label), bit, step))
        bands.add(parting.noise)
    if not rows:
        return None
    columns = ("configuration", "baseline", "first other number", "leaves the noise band")
    notes = tuple(("", f"noise band: {band}, on the mean loss of up to 200 stretches") for band in sorted(bands))
    return Section("parting", "Where runs part", tables=(Table(columns, tuple(rows)),), notes=notes)
