"""The loss scale's course, and each skipped step with its cause."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from mpt.record.reader import RunData
from mpt.report.section import Section, Table, Tone, clean, get, mapping, number, objects, thinned
from mpt.report.sparkline import sparkline
from mpt.units import counted, number_text

_SHOWN = 10
_WORRY = 0.05
"""Share of skipped steps in a run's second half above which more than the search for a scale is at work."""


def section(run: RunData) -> Section:
    skips = _skips(run)
    causes = Counter(skip["cause"] for skip in skips)
    return Section(
        key="scaling",
        title="Loss scale and skipped steps",
        facts=tuple(_facts(run, causes, len(skips))),
        tables=(_table(skips),) if skips else (),
        notes=tuple(_notes(run, causes)),
        data={
            **mapping(run.summary, "scaling"),
            "skipped": len(skips),
            "causes": dict(causes),
            "skips": skips,
        },
    )


def _skips(run: RunData) -> list[dict[str, Any]]:
    """Each skipped step of the record, with the cause that its event gives."""
    told = {event.get("step"): event for event in run.events if event.get("kind") == "skip"}
    forward = {event.get("step"): event for event in run.events if event.get("kind") == "nonfinite_forward"}
    steps = run.steps
    return [
        {
            "step": steps.step[i],
            "cause": clean(get(told.get(steps.step[i]), "cause") or "unknown").replace("_", " "),
            **_origin(told.get(steps.step[i]), forward.get(steps.step[i])),
            "scale": steps.scale[i],
            "loss": steps.loss[i],
        }
        for i, applied in enumerate(steps.applied)
        if not applied
    ]


def _origin(skip: Any, forward: Any) -> dict[str, Any]:
    """Where a skip began: the module whose forward pass broke, else the first gradient of the backward pass."""
    worst = next(iter(objects(skip, "gradients")), {})
    return {
        "began_in": get(forward, "module") or get(skip, "first_in_backward") or get(skip, "module"),
        "nonfinite_tensors": number(skip, "nonfinite_tensors"),
        "tensors": number(skip, "tensors"),
        "worst": {name: worst.get(name) for name in ("name", "inf", "nan", "elements")} if worst else None,
    }


def _facts(run: RunData, causes: Counter[str], skipped: int) -> list[tuple[str, str]]:
    scales = [s for s in run.steps.scale if math.isfinite(s)]
    facts = [("strategy", clean(get(run.summary, "scaling", "strategy") or get(run.plan, "scaling") or "unknown"))]
    if scales and (min(scales) != max(scales)):
        facts.append(("scale", f"{sparkline([math.log2(s) if s > 0 else math.nan for s in run.steps.scale])} (log2)"))
    if scales and max(scales) != 1:
        bounds = f"first {number_text(scales[0])}, least {number_text(min(scales))}, largest {number_text(max(scales))}"
        facts.append(("range", f"{bounds}, last {number_text(scales[-1])}"))
    moves = [(n, number(run.summary, "scaling", f"{n}s")) for n in ("growth", "backoff")]
    if any(count for _, count in moves):
        facts.append(("moves", ", ".join(counted(count, name) for name, count in moves if count is not None)))
    facts.append(("skipped", _skipped(run, causes, skipped)))
    return facts


def _skipped(run: RunData, causes: Counter[str], skipped: int) -> str:
    if not skipped:
        return "none"
    share = f"{skipped:,} of {len(run.steps):,} ({skipped / len(run.steps):.2%})"
    told = ", ".join(counted(count, *noun(cause)) for cause, count in causes.most_common())
    return f"{share}: {told}" if told else share


def noun(cause: str) -> tuple[str, str]:
    """A cause's singular and plural."""
    return cause, cause if cause.endswith("unknown") else f"{cause}{'es' if cause.endswith('s') else 's'}"


def _table(skips: list[dict[str, Any]]) -> Table:
    """Skips by step, thinned where there are many."""
    chosen = [skips[i] for i in thinned(len(skips), _SHOWN)]
    rows = tuple(
        (
            f"{s['step']:,}",
            s["cause"],
            clean(s["began_in"] or "-"),
            _counts(s),
            *map(number_text, (s["scale"], s["loss"])),
        )
        for s in chosen
    )
    columns = ("skipped step", "cause", "began in", "non-finite gradients", "scale", "loss")
    return Table(columns, rows, right=(0, 4, 5))


def _counts(skip: dict[str, Any]) -> str:
    """How many gradients, and what is in the one that is hit worst."""
    bad, of, worst = skip["nonfinite_tensors"], skip["tensors"], skip["worst"]
    if bad is None or of is None:
        return "-"
    told = f"{bad:,.0f} of {of:,.0f}"
    inf, nan, elements = (number(worst, name) for name in ("inf", "nan", "elements"))
    if inf is None or nan is None or elements is None:
        return told
    return f"{told}; {clean(get(worst, 'name'))}: {inf:,.0f} inf, {nan:,.0f} NaN of {elements:,.0f}"


def _notes(run: RunData, causes: Counter[str]) -> list[tuple[Tone, str]]:
    notes: list[tuple[Tone, str]] = []
    if causes.get("nonfinite loss"):
        notes.append(("bad", "a loss that is non-finite before the backward pass: no loss scale can cure that"))
    late = run.steps.applied[len(run.steps) // 2 :]
    if not notes and late.count(False) > _WORRY * len(late):
        notes.append(("careful", "steps are skipped to the end: a lower learning rate, clipping or bf16 may help"))
    return notes
