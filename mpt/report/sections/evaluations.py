"""The evaluations of the run, the best one marked."""

from __future__ import annotations

from typing import Any

from mpt.record.reader import RunData
from mpt.report.section import Section, Table, clean, get, number, thinned
from mpt.report.sparkline import sparkline
from mpt.units import number_text

_SHOWN = 15
_NOT_METRICS = ("step", "update", "best", "precision", "weights", "n")


def section(run: RunData) -> Section:
    evals = run.evals
    if not evals:
        return Section("evaluations", "Evaluations", facts=(("evaluations", "none"),), data={"rows": []})
    names = _names(evals)
    facts = [(name, sparkline(_series(evals, name))) for name in names if len(evals) > 2]
    setting = ", ".join(f"{clean(evals[-1][k])}" for k in ("precision", "weights") if evals[-1].get(k))
    if setting:
        facts.append(("precision, weights", setting))
    rows = [_row(evals, i, names, _best(run)) for i in _chosen(evals, _best(run))]
    table = Table(("update", *map(clean, names), ""), tuple(rows), right=tuple(range(len(names) + 1)))
    return Section("evaluations", "Evaluations", tuple(facts), (table,), data={"rows": evals})


def _names(evals: list[dict[str, Any]]) -> list[str]:
    return list(
        {name: None for row in evals for name in row if name not in _NOT_METRICS and number(row, name) is not None}
    )


def _series(evals: list[dict[str, Any]], name: str) -> list[float]:
    return [value if (value := number(row, name)) is not None else float("nan") for row in evals]


def _best(run: RunData) -> float | None:
    """The step of the best evaluation: after a return to a checkpoint an update comes again."""
    step = number(get(run.summary, "best"), "step")
    marked = [number(row, "step") for row in run.evals if row.get("best") is True]
    return step if step is not None else (marked[-1] if marked else None)


def _chosen(evals: list[dict[str, Any]], best: float | None) -> list[int]:
    chosen = set(thinned(len(evals), _SHOWN))
    return sorted(chosen | {i for i, row in enumerate(evals) if best is not None and number(row, "step") == best})


def _row(evals: list[dict[str, Any]], i: int, names: list[str], best: float | None) -> tuple[str, ...]:
    row = evals[i]
    update = number(row, "update")
    cells = [number_text(v) if (v := number(row, name)) is not None else "-" for name in names]
    mark = "best" if best is not None and number(row, "step") == best else ""
    return (f"{update:,.0f}" if update is not None else "-", *cells, mark)
