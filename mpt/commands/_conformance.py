"""What `mpt doctor --conformance` finds and prints: one line for each format and device."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def examine(devices: list[str]) -> dict[str, Any]:
    """Findings as plain containers. Raises: ConfigError for a device that is not there."""
    from mpt.formats.conformance import conform
    from mpt.plan.facts import probe

    found = []
    for device in devices:
        facts = probe(device)
        name = f"cuda:{facts.index}" if facts.type == "cuda" else facts.type
        found.append({"device": name, "name": facts.name, "formats": [asdict(row) for row in conform(name)]})
    return {"schema": "mpt.conformance/1", "devices": found}


def holds(document: dict[str, Any]) -> bool:
    """Whether every result was the table's."""
    return not any(row["wrong"] for device in document["devices"] for row in device["formats"])


def show(document: dict[str, Any]) -> None:
    """A table for each device."""
    from mpt.commands._console import console, table

    out = console()
    for device in document["devices"]:
        shown = table("format", "results compared", "verdict", title=f"{device['device']}: {device['name']}")
        for row in device["formats"]:
            verdict = f"{row['wrong']:,} differ: {row['example']}" if row["wrong"] else "bit-exact"
            shown.add_row(row["format"], f"{row['compared']:,}", verdict)
        out.print(shown)
