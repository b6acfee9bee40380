"""A part of a report as text, without a layout: what terminal, Markdown and JSON versions are made from."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpt.units import bytes_text, number_text, seconds_text

Tone = str
"""`good`, `bad`, `careful` or empty."""

_HIDDEN = ("Cc", "Cf", "Cs", "Co")  # controls, direction marks, surrogates, private use


@dataclass(frozen=True)
class Table:
    """`columns` names, then rows of as many cells; numeric columns are those listed in `right`, rows in `dim` are
    greyed."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    dim: tuple[int, ...] = ()


@dataclass(frozen=True)
class Section:
    """`facts` are name and value; `notes` are sentences with a tone; `data` is the JSON form."""

    key: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[tuple[Tone, str], ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def clean(value: object) -> str:
    """Text from a run folder on one line, with every character that could steer a terminal shown as its code."""
    return "".join(
        f"\\x{ord(c):02x}" if unicodedata.category(c) in _HIDDEN and c not in "\n\t" else c for c in str(value)
    ).translate({ord("\n"): " ", ord("\t"): " "})


def get(document: Any, *keys: str) -> Any:
    """The member at the path of keys; None where a step is missing or no object."""
    for key in keys:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def mapping(document: Any, *keys: str) -> dict[str, Any]:
    """The object at the path of keys; empty where there is none."""
    value = get(document, *keys)
    return value if isinstance(value, dict) else {}


def objects(document: Any, *keys: str) -> list[dict[str, Any]]:
    """The objects of the list at the path of keys; empty where there is none."""
    value = get(document, *keys)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def number(document: Any, *keys: str) -> float | None:
    """The number at the path of keys, or None."""
    value = get(document, *keys)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def reason(document: Any, *keys: str) -> str:
    """Why the member at the path of keys is null."""
    marks = get(document, *keys[:-1], "nonfinite")
    if isinstance(marks, dict) and keys[-1] in marks:
        return clean(marks[keys[-1]])
    why = get(document, *keys[:-1], f"{keys[-1]}_reason")
    return f"not measured: {clean(why)}" if why else "not measured"


def shown(document: Any, keys: Sequence[str], unit: str = "") -> str:
    """The figure at the path of keys as text, or why there is none. `unit`: bytes, s, ms, share, or plain."""
    value = number(document, *keys)
    if value is None:
        return reason(document, *keys)
    if unit == "bytes":
        return bytes_text(value)
    if unit == "s":
        return seconds_text(value)
    if unit == "share":
        return f"{value:.1%}"
    return f"{number_text(value)} {unit}".rstrip()


def thinned(count: int, limit: int) -> list[int]:
    """Up to `limit` indices of `count` items, evenly spread, first and last among them."""
    if count <= limit:
        return list(range(count))
    return sorted({round(i * (count - 1) / (limit - 1)) for i in range(limit)})
