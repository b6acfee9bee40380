"""Strict JSON: a non-finite number is null with a mark beside it, an unmeasured one null with its reason."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from mpt.types import Unmeasured

MARK = "nonfinite"
"""Key under which an object lists its members that were not finite."""


def spell(number: float) -> str:
    """`nan`, `inf` or `-inf`: what stands in the mark; `float()` reads it back."""
    return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")


def strict(value: Any) -> Any:
    """The value as dicts, lists and scalars that `json.dumps(allow_nan=False)` takes.

    Raises: TypeError for an object that has no JSON form.
    """
    marks: dict[str, str] = {}
    plain = _plain(value, "value", marks)
    return {"value": plain, MARK: marks} if marks else plain


def dumps(value: Any, *, indent: int | None = None) -> str:
    """One strict JSON document; one line without `indent`."""
    separators = (",", ":") if indent is None else None
    return json.dumps(strict(value), allow_nan=False, indent=indent, separators=separators)


def loads(text: str | bytes) -> Any:
    """The document's value. Raises: ValueError for NaN, Infinity and anything else that is no JSON."""
    return json.loads(text, parse_constant=_refuse)


def restored(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its marked numbers put back and the mark dropped; nested names stay null."""
    marks = row.get(MARK)
    if not isinstance(marks, dict):
        return row
    back = {key: float(word) for key, word in marks.items() if key in row and word in ("nan", "inf", "-inf")}
    return {key: back.get(key, value) for key, value in row.items() if key != MARK}


def _refuse(constant: str) -> Any:
    raise ValueError(f"`{constant}` is not JSON")


def _plain(value: Any, where: str, marks: dict[str, str]) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value, where, marks)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return _number(value, where, marks)
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]", marks) for i, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item, where, marks) for item in value)
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _object({f.name: getattr(value, f.name) for f in fields(value)})
    raise TypeError(f"{where}: {type(value).__name__} has no JSON form")


def _number(value: float, where: str, marks: dict[str, str]) -> float | None:
    if math.isfinite(value):
        return float(value)
    marks[where] = spell(value)
    return None


def _object(members: Mapping[Any, Any]) -> dict[str, Any]:
    marks: dict[str, str] = {}
    plain: dict[str, Any] = {}
    for key, value in members.items():
        if isinstance(value, Unmeasured):
            plain[str(key)], plain[f"{key}_reason"] = None, value.reason
        else:
            plain[str(key)] = _plain(value, str(key), marks)
    return {**plain, MARK: {**plain.get(MARK, {}), **marks}} if marks else plain
