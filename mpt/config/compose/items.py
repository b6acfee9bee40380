"""What is wrong with the items of a list of mappings, key by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from mpt.errors import Problem
from mpt.registry import closest, did_you_mean

_NUMBERS: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float)}


def wrong_items(where: str, hint: Any, value: Any) -> list[Problem]:
    """Problems of `value` as a list of a dataclass's mappings; none where it is no such list at all."""
    inner = get_args(hint)[0] if get_origin(hint) is list else None
    if inner is None or not is_dataclass(inner) or not isinstance(value, list):
        return []
    return [p for i, item in enumerate(value) if isinstance(item, dict) for p in _item(f"{where}[{i}]", inner, item)]


def _item(where: str, inner: Any, item: dict[Any, Any]) -> Iterator[Problem]:
    known: dict[str, Field[Any]] = {f.name: f for f in fields(inner)}
    unknown = [str(key) for key in item if key not in known]
    meant = {near for key in unknown for near in closest(key, tuple(known))}  # a misspelt key is one problem, not two
    for key in unknown:
        yield Problem(f"{where}.{key}", "no such key", did_you_mean(key, tuple(known)))
    hints = get_type_hints(inner)
    for name, one in known.items():
        if name not in item and name not in meant and one.default is MISSING:
            yield Problem(f"{where}.{name}", "is missing", f"give all of {_needed(known)}")
        elif name in item and not _number_fits(hints[name], item[name]):
            yield Problem(f"{where}.{name}", f"got `{item[name]}`, want a {_word(hints[name])}")


def _needed(known: dict[str, Field[Any]]) -> str:
    return ", ".join(name for name, one in known.items() if one.default is MISSING)


def _number_fits(hint: Any, value: Any) -> bool:
    """Text is left to its own rules: a number is a module's name too."""
    wanted = [kinds for kind, kinds in _NUMBERS.items() if kind in (hint, *get_args(hint))]
    if not wanted or (value is None and type(None) in get_args(hint)):
        return not isinstance(value, (dict, list))
    return not isinstance(value, bool) and isinstance(value, wanted[0])


def _word(hint: Any) -> str:
    return "whole number" if int in (hint, *get_args(hint)) else "number" if float in get_args(hint) else "word"
