"""Every run that took part, and every folder that did not."""

from __future__ import annotations

from mpt.report.compare.brief import Brief
from mpt.report.compare.comparison import Comparison
from mpt.report.section import Section, Table, Tone, clean
from mpt.units import number_text


def section(made: Comparison) -> Section:
    rows = [(clean(c.label), *_cells(run, made)) for c in made.configs for run in c.runs]
    name = f"{made.metric.at} {made.metric.name}"
    table = Table(("configuration", "seed", "status", "steps", name, "folder"), tuple(rows), right=(1, 3, 4))
    notes: list[tuple[Tone, str]] = [
        ("careful", f"skipped {clean(problem.where)}: {clean(problem.what)}") for problem in made.skipped
    ]
    for run in made.runs:
        if not run.done:
            notes.append(("careful", f"{clean(run.data.path)}: {run.data.status}: {clean(run.data.reason)}"))
        notes += [("careful", f"{clean(run.data.path)}: {clean(flaw)}") for flaw in run.data.flaws]
    return Section("runs", "Runs", tables=(table,), notes=tuple(notes))


def _cells(run: Brief, made: Comparison) -> tuple[str, ...]:
    value = made.metric.of(run)
    return (
        "-" if run.seed is None else str(run.seed),
        run.data.status,
        f"{len(run.loss):,}",
        "-" if value is None else number_text(value),
        clean(run.data.path),
    )
