"""What was run, where, and how to run it again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from mpt.record.provenance import begun_by
from mpt.record.reader import RunData
from mpt.report.section import Section, clean, get, mapping, number
from mpt.units import bytes_text, counted

_LABELS = {"folder": "typed in", "commit": "commit there"}
"""Lines of source.txt whose names alone say too little beside the run's own folder and mpt's own commit."""
_GROUPS = ("model", "data", "task", "precision", "scaling", "optimizer", "schedule")


def section(run: RunData) -> Section:
    facts = [
        *_choices(run),
        ("seed", clean(_first(get(run.summary, "seed"), get(run.config, "seed"), "unknown"))),
        ("device", _device(run)),
        ("versions", _versions(run)),
        (
            "config fingerprint",
            clean(_first(get(run.summary, "config_fingerprint"), get(run.plan, "fingerprint"), "-")),
        ),
        (
            "data fingerprint",
            clean(_first(get(run.summary, "data_fingerprint"), get(run.plan, "data", "fingerprint"), "-")),
        ),
        ("folder", clean(run.path)),
        *_source(run),
    ]
    data = {"config": run.config, "device": get(run.env, "device"), "versions": get(run.env, "versions")}
    return Section("configuration", "Configuration, and how to run it again", tuple(facts), data=data)


def _first(*values: Any) -> Any:
    return next((v for v in values if v is not None), None)


def _choices(run: RunData) -> list[tuple[str, str]]:
    told = []
    for group in _GROUPS:
        members = get(run.config, group)
        name = members.get("choice") or members.get("name") if isinstance(members, dict) else members
        if name:
            told.append((group, clean(name)))
    params = number(run.plan, "params")
    return [(g, f"{n}, {params:,.0f} parameters" if g == "model" and params else n) for g, n in told]


def _device(run: RunData) -> str:
    device = mapping(run.env, "device") or mapping(run.summary, "device") or mapping(run.plan, "device")
    told = f"{clean(device.get('type', 'unknown'))}: {clean(device.get('name', 'unknown'))}"
    memory, threads = number(device, "memory_bytes"), number(run.env, "cpu", "threads")
    told += f", {bytes_text(memory)}" if memory else ""
    return told + (f", {counted(threads, 'CPU thread')}" if threads else "")


def _versions(run: RunData) -> str:
    versions = mapping(run.env, "versions") or mapping(run.summary, "versions")
    names = [name for name in ("mpt", "torch", "python") if name in versions]
    return ", ".join(f"{name} {clean(versions[name])}" for name in names) or "unknown"


def _source(run: RunData) -> list[tuple[str, str]]:
    """The lines of source.txt before the changes, and whether there were any."""
    head, _, changes = run.source.partition("\n\n")
    facts = [
        (_LABELS.get(key, clean(key)), clean(value))
        for line in head.splitlines()
        for key, _, value in [line.partition(": ")]
        if value
    ]
    again = _again(begun_by(run.source), run.path)
    facts = [("run it again", clean(again)), *facts] if again else facts
    return [*facts, ("changes", "the tree had changes: see source.txt")] if changes.strip() else facts


def _again(command: str, folder: Path) -> str:
    """The command that began the run, for a folder of its own beside it; empty where it is no shell's words."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    words = [word for word in words if word.lstrip("+") != "resume=auto"]
    return shlex.join(f"run_dir={folder}-again" if word.startswith("run_dir=") else word for word in words)
