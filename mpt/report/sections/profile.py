"""Where the time of the profiled steps went."""

from __future__ import annotations

from mpt.record.reader import RunData
from mpt.record.strict import loads
from mpt.report.section import Section, Table, clean, number, objects
from mpt.units import number_text

_SHOWN = 15


def section(run: RunData) -> Section | None:
    """The longest ops of trainer.profile; None where nothing was profiled."""
    try:
        found = loads((run.path / "profile.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    total, steps = number(found, "total_ms"), number(found, "steps")
    if not total or not steps:
        return None
    rows = []
    for op in objects(found, "ops")[:_SHOWN]:
        spent, calls = number(op, "self_ms") or 0.0, number(op, "calls") or 0.0
        cells = f"{spent / total:.1%}", f"{number_text(spent / steps, 3)} ms", number_text(calls / steps, 3)
        rows.append((clean(op.get("op", "?")), *cells))
    first = number(found, "first_step") or 0
    facts = (
        (
            "steps",
            f"{first:.0f} to {first + steps - 1:.0f}, by torch's profiler, which slows them: in no figure of speed",
        ),
        ("trace", "profile-trace.json.gz, for perfetto.dev or chrome://tracing"),
    )
    table = Table(("op", "share", "a step", "calls a step"), tuple(rows), right=(1, 2, 3))
    return Section("profile", "Profile", facts, (table,), data=found)
