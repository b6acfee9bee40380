"""How the run ended and what it reached."""

from __future__ import annotations

import math
from typing import Any

from mpt.record.reader import RUNNING, UNFINISHED, RunData
from mpt.report.section import Section, Tone, clean, get, number, shown
from mpt.report.sections.events import injected, on_purpose
from mpt.report.sparkline import sparkline
from mpt.units import counted, epochs_text, number_text, seconds_text

_TONES: dict[str, Tone] = {"done": "good", "failed": "bad", "diverged": "bad", "interrupted": "careful"}
_ADVICE = {
    "interrupted": "the same command with resume=auto and this run_dir goes on",
    "failed": "what was saved is intact: the same command with resume=auto and this run_dir goes on",
    UNFINISHED: "resume=auto with this run_dir goes on from the newest valid checkpoint",
}


def section(run: RunData) -> Section:
    nonfinite = nonfinite_losses(run)
    facts = [
        ("status", f"{run.status}: {clean(run.reason)}" if run.reason else run.status),
        ("steps", _steps(run)),
        *_quality(run),
        *_loss(run),
        ("time", _time(run)),
    ]
    return Section(
        key="headline",
        title=clean(run.name),
        facts=tuple(facts),
        notes=tuple(_notes(run, nonfinite)),
        data={
            "name": run.name,
            "status": run.status,
            "reason": run.reason,
            "steps": len(run.steps),
            "updates": run.steps.update[-1] if run.steps.update else 0,
            "skipped": run.steps.applied.count(False),
            "final": get(run.summary, "final"),
            "best": get(run.summary, "best"),
            "nonfinite_losses": len(nonfinite),
            "first_nonfinite_loss": nonfinite[0] if nonfinite else None,
            "flaws": list(run.flaws),
        },
    )


def nonfinite_losses(run: RunData) -> list[int]:
    """The steps whose loss was NaN or infinite."""
    return [step for step, loss in zip(run.steps.step, run.steps.loss, strict=True) if not math.isfinite(loss)]


def _steps(run: RunData) -> str:
    planned = number(run.plan, "length", "steps")
    taken, skipped = len(run.steps), run.steps.applied.count(False)
    of = f" of {planned:,.0f} planned" if planned and planned != taken else ""
    epochs = number(run.summary, "epochs")
    return f"{taken:,}{of}, {skipped:,} skipped" + (f", {epochs_text(epochs)}" if epochs is not None else "")


def _quality(run: RunData) -> list[tuple[str, str]]:
    told = []
    for key, title in (("final", "final"), ("best", "best")):
        metrics = get(run.summary, key)
        if isinstance(metrics, dict):
            told.append((title, _metrics(metrics)))
    return told


def _metrics(metrics: dict[str, Any]) -> str:
    parts = []
    for name, value in metrics.items():
        if isinstance(value, (int, float)):
            parts.append(f"{clean(name)} {number_text(value)}")
        elif value is None:
            parts.append(f"{clean(name)} {shown(metrics, (name,))}")
    return ", ".join(parts) or "not measured"


def _loss(run: RunData) -> list[tuple[str, str]]:
    losses = run.steps.loss
    if not losses:
        return []
    return [("loss", f"{sparkline(losses)} {number_text(losses[0])} → {number_text(losses[-1])}")]


def _time(run: RunData) -> str:
    total = number(run.summary, "time_s", "total")
    if total is not None:
        return seconds_text(total)
    spent = math.fsum(t for t in run.steps.time_s if math.isfinite(t))
    return f"{seconds_text(spent)} in steps" if len(run.steps) else "no step was taken"


def _notes(run: RunData, nonfinite: list[int]) -> list[tuple[Tone, str]]:
    notes: list[tuple[Tone, str]] = []
    if run.status == RUNNING:
        notes.append(("careful", "the run is still going: these figures are not its last"))
    elif run.status != "done":
        notes.append((_TONES.get(run.status, "careful"), f"the run did not finish ({run.status})"))
    if run.status in _ADVICE:
        notes.append(("", _ADVICE[run.status]))
    if nonfinite:
        notes.append(
            ("bad", f"{counted(len(nonfinite), 'step')} had a non-finite loss, the first was step {nonfinite[0]:,}")
        )
    if puts := injected(run):
        notes.append(("careful", on_purpose(puts)))
    if get(run.plan, "data", "synthetic") is True:
        notes.append(("careful", "synthetic data: nothing was there to be learned"))
    notes += [("careful", clean(flaw)) for flaw in run.flaws]
    return notes
