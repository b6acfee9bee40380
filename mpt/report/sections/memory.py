"""Peak memory, and what held it."""

from __future__ import annotations

from mpt.record.reader import RunData
from mpt.report.section import Section, Table, clean, get, number, reason, shown
from mpt.units import bytes_text

PARTS = (
    ("params", "weights"),
    ("buffers", "buffers"),
    ("grads", "gradients"),
    ("optimizer", "optimizer state and master copies"),
    ("ema", "averaged weights"),
    ("activations", "activations kept for the backward"),
    ("batch", "one micro-batch"),
    ("data", "data set on the device"),
)


def section(run: RunData) -> Section:
    memory = get(run.summary, "memory")
    if not isinstance(memory, dict):
        return Section("memory", "Memory", facts=(("peak", "not measured: the run has no summary"),))
    facts = [("peak", shown(memory, ("peak_bytes",), "bytes"))]
    if number(memory, "rss_peak_bytes") is not None:
        facts.append(("process, libraries included", shown(memory, ("rss_peak_bytes",), "bytes")))
    if number(memory, "predicted_peak_bytes") is not None:
        facts.append(("predicted", _predicted(memory)))
    notes = (("", f"measured by {clean(memory.get('method', 'an unknown method'))}"),)
    return Section("memory", "Memory", tuple(facts), (_table(memory),), notes, memory)


def _predicted(memory: dict[str, object]) -> str:
    """The predicted peak, and how far it is from the measured one."""
    told, peak = number(memory, "predicted_peak_bytes"), number(memory, "peak_bytes")
    assert told is not None
    return bytes_text(told) + (f" ({told / peak - 1:+.2%} of what was measured)" if peak else "")


def _table(memory: dict[str, object]) -> Table:
    rows = []
    for key, title in PARTS:
        value = number(memory, f"{key}_bytes")
        if value is None and f"{key}_bytes" in memory:
            rows.append((title, reason(memory, f"{key}_bytes")))
        elif value:
            rows.append((title, bytes_text(value)))
    return Table(("held by", "size"), tuple(rows), right=(1,))
