"""The loss scale's course, and each skipped step with its cause."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from mpt.record.reader import RunData
from mpt.report.section import Section, Table, Tone, clean, get, mapping, number, shown, thinned
from mpt.report.sparkline import sparkline
from mpt.units import number_text

_SHOWN = 10
_WORRY = 0.05
"""Share of skipped steps above which something other than the search for a scale is at work."""


def section(run: RunData) -> Section:
    skips = [event for event in run.events if event.get("kind") == "skip" and _counts(run, event)]
    causes = Counter(clean(event.get("cause", "unknown")) for event in skips)
    skipped = run.steps.applied.count(False)
    return Section(
        key="scaling",
        title="Loss scale and skipped steps",
        facts=tuple(_facts(run, causes, skipped)),
        tables=(_table(skips),) if skips else (),
        notes=tuple(_notes(run, causes, skipped)),
        data={
            **mapping(run.summary, "scaling"),
            "skipped": skipped,
            "causes": dict(causes),
            "skips": [{k: v for k, v in event.items() if k != "kind"} for event in skips],
        },
    )


def _counts(run: RunData, event: dict[str, Any]) -> bool:
    """Whether the event is of a step that is in the record: a resumed run takes some steps twice."""
    step = event.get("step")
    return not isinstance(step, int) or not len(run.steps) or step <= run.steps.step[-1]


def _facts(run: RunData, causes: Counter[str], skipped: int) -> list[tuple[str, str]]:
    scales = [s for s in run.steps.scale if math.isfinite(s)]
    facts = [("strategy", clean(get(run.summary, "scaling", "strategy") or get(run.plan, "scaling") or "unknown"))]
    if scales and (min(scales) != max(scales)):
        facts.append(("scale", f"{sparkline([math.log2(s) if s > 0 else math.nan for s in run.steps.scale])} (log2)"))
    if scales:
        bounds = f"first {number_text(scales[0])}, least {number_text(min(scales))}, largest {number_text(max(scales))}"
        facts.append(("range", f"{bounds}, last {number_text(scales[-1])}"))
    if number(run.summary, "scaling", "growths") is not None:
        facts.append(("growths", shown(run.summary, ("scaling", "growths"))))
    facts.append(("skipped", _skipped(run, causes, skipped)))
    return facts


def _skipped(run: RunData, causes: Counter[str], skipped: int) -> str:
    if not skipped:
        return "none"
    share = f"{skipped:,} of {len(run.steps):,} ({skipped / len(run.steps):.2%})"
    told = ", ".join(f"{count:,} {cause.replace('_', ' ')}" for cause, count in causes.most_common())
    return f"{share}: {told}" if told else share


def _table(skips: list[dict[str, Any]]) -> Table:
    """Skips by step, thinned where there are many; of a step that was taken twice, the last."""
    by_step = list({event.get("step"): event for event in skips}.values())
    rows = tuple(
        tuple(clean(_cell(by_step[i].get(key))) for key in ("step", "cause", "scale", "loss"))
        for i in thinned(len(by_step), _SHOWN)
    )
    return Table(("skipped step", "cause", "scale", "loss"), rows, right=(0, 2, 3))


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number_text(value)
    return "-" if value is None else str(value).replace("_", " ")


def _notes(run: RunData, causes: Counter[str], skipped: int) -> list[tuple[Tone, str]]:
    notes: list[tuple[Tone, str]] = []
    if causes.get("nonfinite_loss"):
        notes.append(("bad", "a loss that is non-finite before the backward pass: no loss scale can cure that"))
    elif len(run.steps) and skipped / len(run.steps) > _WORRY:
        notes.append(("careful", "many steps were skipped: a lower learning rate, clipping or bf16 may help"))
    return notes
