"""The merged configuration of plans, a line for each group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpt.report.section import Section

DIFFERS = "(as listed)"
"""Stands for a value in which the plans differ."""


def configuration_section(merged: Sequence[Mapping[str, Any]]) -> Section:
    """What all of these have, as `saved.merged` gives it, with keys that are set to something."""
    groups = {key: value for key, value in merged[0].items() if isinstance(value, dict)}
    alone = [{key: value for key, value in one.items() if key not in groups} for one in merged]
    facts = [("run", " ".join(_words(alone)))]
    facts += [(group, " ".join(_words([one[group] for one in merged]))) for group in groups]
    note = "keys that are null are left out: `mpt list keys` has them all; --json has the whole configuration"
    return Section("configuration", "Merged configuration", tuple(facts), notes=(("", note),))


def _words(several: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`key=value` of each key that is set."""
    for key in dict.fromkeys(key for one in several for key in one):
        first, *others = (one.get(key) for one in several)
        differs = any(other != first for other in others)
        if differs or first not in (None, [], {}):
            yield f"{key}={DIFFERS if differs else _typed(first)}"


def _typed(value: Any) -> str:
    """As it is typed on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_typed, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_typed(v)}' for k, v in value.items())}}}"
    return "null" if value is None else str(value)
