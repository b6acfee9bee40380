"""Command lines with comma lists: one for each combination."""

from __future__ import annotations

import itertools
from collections.abc import Iterator


def expanded(words: list[str]) -> list[tuple[str, list[str]]]:
    """Each combination of `key=a,b` with the words that set it apart; commas in brackets or quotes are no list."""
    choices = [_choices(word) for word in words]
    lists = [i for i, found in enumerate(choices) if len(found) > 1]
    made = itertools.product(*choices)
    return [(" ".join(line[i] for i in lists) or "as asked", list(line)) for line in made]


def _choices(word: str) -> list[str]:
    key, equals, value = word.partition("=")
    return [f"{key}={part}" for part in _split(value)] if equals else [word]


def _split(value: str) -> Iterator[str]:
    if any(c in value for c in "[]{}()'\"") or not all(value.split(",")):
        yield value
    else:
        yield from value.split(",")
