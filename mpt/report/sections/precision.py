"""The precision that was asked for, planned and observed."""

from __future__ import annotations

from collections import Counter

from mpt.record.reader import RunData
from mpt.report.section import Section, Table, Tone, clean, get, mapping, number, objects, reason

_SHOWN_ROWS = 12
_MOSTLY = 0.5
"""Share of gradients that are 0 from which on it is not only units that are switched off."""


def section(run: RunData) -> Section:
    return Section(
        key="precision",
        title="Precision",
        facts=tuple(_facts(run)),
        tables=tuple(t for t in (_groups(run), _differences(run)) if t.rows),
        notes=tuple(_notes(run)),
        data={
            "asked": get(run.config, "precision"),
            "planned": get(run.plan, "mechanism"),
            "observed": {key: run.audit.get(key) for key in ("verdict", "loss_format", "notes", "rows")},
            "emulated": is_emulated(run),
        },
    )


def is_emulated(run: RunData) -> bool:
    """Whether the run's format was emulated, by its plan."""
    return "emulated" in (get(run.plan, "mechanism", "how"), get(run.summary, "precision", "backend"))


def _facts(run: RunData) -> list[tuple[str, str]]:
    asked = (
        get(run.summary, "precision", "requested") or get(run.plan, "precision") or get(run.config, "precision", "name")
    )
    mechanism = mapping(run.plan, "mechanism")
    effective = get(run.summary, "precision", "effective") or mechanism.get("compute")
    how = get(run.summary, "precision", "backend") or mechanism.get("how")
    why = get(run.summary, "precision", "mechanism") or mechanism.get("reason")
    facts = [("asked", clean(asked or "unknown")), ("effective", _phrase(effective, how, why))]
    verdict = run.audit.get("verdict")
    facts.append(("audit", _verdict(run) if verdict else reason(run.summary, "precision", "audit")))
    scaling = get(run.summary, "scaling", "strategy") or get(run.plan, "scaling")
    facts.append(("loss scaling", clean(scaling or "unknown")))
    facts += _losses(run)
    tf32 = _tf32(run)
    return [*facts, ("TF32", tf32)] if tf32 else facts


def _phrase(effective: object, how: object, why: object) -> str:
    told = clean(effective or "unknown")
    if how:
        told += f", {clean(how)}"
    return f"{told} ({clean(why)})" if why else told


def _verdict(run: RunData) -> str:
    rows = objects(run.audit, "rows")
    wrong = sum(row.get("matches") is False for row in rows)
    head = (
        "all as planned" if run.audit["verdict"] == "match" else f"{wrong} of {len(rows)} modules differ from the plan"
    )
    return f"{head}; {len(rows)} modules observed, loss in {clean(run.audit.get('loss_format', 'unknown'))}"


def _losses(run: RunData) -> list[tuple[str, str]]:
    """What low precision cost: shares of gradients that became zero, of updates that changed nothing."""
    lost = get(run.summary, "losses_of_precision")
    titles = (
        ("zero_grad_share", "gradients that are zero"),
        ("underflow_share", "gradients that became zero by underflow"),
        ("lost_update_share", "updates lost to rounding"),
    )
    return [(title, f"{value:.2%}") for key, title in titles if (value := number(lost, key)) is not None]


def _tf32(run: RunData) -> str:
    flags = get(run.env, "flags")
    if get(run.plan, "device", "type") != "cuda" or not isinstance(flags, dict):
        return ""
    return ", ".join(f"{clean(k)}={clean(v)}" for k, v in flags.items() if "tf32" in k or "fp32_precision" in k)


def _groups(run: RunData) -> Table:
    """Modules of the same kind and the same formats, counted."""
    planned = {str(row.get("name")): row for row in objects(run.plan, "rows")}
    kinds = Counter(
        (
            clean(planned.get(str(row.get("name")), {}).get("kind", "other")),
            clean(row.get("planned", "")),
            _formats(row.get("forward")),
            _formats(row.get("backward")),
        )
        for row in objects(run.audit, "rows")
    )
    rows = tuple((*kind, f"{count:,}") for kind, count in kinds.most_common(_SHOWN_ROWS))
    return Table(("kind", "planned", "observed forward", "observed backward", "modules"), rows, right=(4,))


def _differences(run: RunData) -> Table:
    wrong = [row for row in objects(run.audit, "rows") if row.get("matches") is False][:_SHOWN_ROWS]
    rows = tuple(
        (
            clean(row.get("name", "")),
            clean(row.get("planned", "")),
            _formats(row.get("forward")),
            _formats(row.get("backward")),
            clean(row.get("note", "")),
        )
        for row in wrong
    )
    return Table(("module that differs", "planned", "forward", "backward", "why"), rows)


def _formats(value: object) -> str:
    return ", ".join(clean(v) for v in value) if isinstance(value, list) and value else "-"


def _notes(run: RunData) -> list[tuple[Tone, str]]:
    notes: list[tuple[Tone, str]] = []
    told = [note for source in (run.audit.get("notes"), get(run.plan, "notes")) for note in _sentences(source)]
    vanished = number(run.summary, "losses_of_precision", "underflow_share")
    if vanished is not None and vanished >= _MOSTLY:
        why = "too small for float16: use scaling=dynamic, or another scale (--advise-scaling with numerics=light)"
        notes.append(("bad", f"{vanished:.1%} of the gradients became 0, {why}"))
    if run.audit.get("verdict") == "differs":
        notes.append(("bad", "what was observed is not what was planned"))
    if is_emulated(run) and not any("emulated" in note for note in told):
        notes.append(("careful", "the format is emulated: its numerics are real, its speed says nothing"))
    return notes + [("careful" if "emulated" in note else "", note) for note in told]


def _sentences(source: object) -> list[str]:
    return [clean(note) for note in source] if isinstance(source, list) else []
