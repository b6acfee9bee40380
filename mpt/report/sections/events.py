"""Faults that were put in on purpose, where forward passes broke, and what guards and rollbacks did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpt.record.reader import RunData
from mpt.report.section import Section, Table, Tone, clean, get, number, thinned
from mpt.units import counted

_SHOWN = 20


def section(run: RunData) -> Section | None:
    """None for a run in which nothing of this happened."""
    found = [(event, tell(event)) for event in run.events if (tell := _TELL.get(str(event.get("kind"))))]
    if not found:
        return None
    chosen = [found[i] for i in thinned(len(found), _SHOWN)]
    rows = tuple((_step(event), _NAMES[event["kind"]], clean(told)) for event, told in chosen)
    notes: list[tuple[Tone, str]] = []
    if len(rows) < len(found):
        notes.append(("", f"{len(rows)} of {len(found):,} are shown; events.jsonl has all"))
    if puts := injected(run):
        notes.append(("careful", on_purpose(puts)))
    return Section(
        key="events",
        title="Faults, guards and rollbacks",
        tables=(Table(("step", "event", "what"), rows, right=(0,)),),
        notes=tuple(notes),
        data={"events": [event for event, _ in found]},
    )


def injected(run: RunData) -> list[dict[str, Any]]:
    """The events of faults that were put in on purpose."""
    return [event for event in run.events if event.get("kind") == "injected"]


def on_purpose(puts: list[dict[str, Any]]) -> str:
    """One line that nobody who reads figures of such a run may miss."""
    steps = [f"{step:,.0f}" for event in puts if (step := number(event, "step")) is not None]
    shown = ", ".join(steps[:5]) + (", …" if len(steps) > 5 else "")
    count = counted(len(puts), "fault")
    return f"{count} put in on purpose (debug.inject), at step {shown or 'unknown'}: what comes of it is no result"


def _step(event: dict[str, Any]) -> str:
    step = number(event, "step")
    return "-" if step is None else f"{step:,.0f}"


def _injected(event: dict[str, Any]) -> str:
    fault, where = event.get("fault", "a fault"), event.get("where", "unknown")
    return f"{fault} put into the {where} pass of {event.get('module') or 'the whole model'}"


def _forward(event: dict[str, Any]) -> str:
    module, origin = event.get("module"), event.get("origin")
    if isinstance(origin, dict) and origin.get("told"):
        return str(origin["told"])
    return f"first in {module}" if module else "in no module any more when the pass was repeated"


def _evaluation(event: dict[str, Any]) -> str:
    samples = event.get("samples")
    shown = ", ".join(map(str, samples[:5])) if isinstance(samples, list) else "unknown"
    origin = event.get("origin")
    why = str(origin.get("told")) if isinstance(origin, dict) else "the model's output has inf or nan in it"
    return f"samples {shown}: {why if event.get('inputs_finite') else 'the batch itself has inf or nan in it'}"


def _guard(event: dict[str, Any]) -> str:
    return f"{event.get('guard')} ({event.get('action')}): {event.get('reason')}"


def _rollback(event: dict[str, Any]) -> str:
    undone = number(event, "undone")
    back = f"back to {get(event, 'checkpoint') or 'a checkpoint'}"
    told = f"{back}, {counted(undone, 'update')} undone" if undone is not None else back
    return f"{told}: {event.get('reason')}"


_TELL: dict[str, Callable[[dict[str, Any]], str]] = {
    "injected": _injected, "nonfinite_forward": _forward, "nonfinite_backward": _forward,
    "nonfinite_evaluation": _evaluation, "guard": _guard, "rollback": _rollback,
}  # fmt: skip
_NAMES = {
    "injected": "put in on purpose",
    "nonfinite_forward": "non-finite forward pass",
    "nonfinite_backward": "non-finite gradient at any scale",
    "nonfinite_evaluation": "non-finite evaluation",
    "guard": "guard",
    "rollback": "rollback",
}
