"""Rows of a table that repeated blocks share: told once, for all of their numbers."""

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[str, ...]


def told_once(rows: Sequence[Row]) -> list[Row]:
    """Rows that differ in the first number of their name alone become one, where the first of them stood.

    `blocks.0.norm` to `blocks.11.norm` are `blocks.0–11.norm`. Layers of a flat list stay: their order counts.
    """
    groups: dict[object, tuple[Row, list[int]]] = {}
    for row in rows:
        number = _number(row)
        key = row if number is None else (_named(row[0], "#"), *row[1:])
        groups.setdefault(key, (row, []))[1].extend([] if number is None else [number])
    return [(_named(row[0], _ranges(n)) if len(n) > 1 else row[0], *row[1:]) for row, n in groups.values()]


def _number(row: Row) -> int | None:
    """The first number in a module's name that stands for a block: of layers, it is not the last part."""
    *parents, last = row[0].split(".")
    numbers = [part for part in (parents if any(row[1:2]) else [*parents, last]) if part.isdecimal()]
    return int(numbers[0]) if numbers else None


def _named(name: str, number: str) -> str:
    parts = name.split(".")
    first = next(i for i, part in enumerate(parts) if part.isdecimal())
    return ".".join([*parts[:first], number, *parts[first + 1 :]])


def _ranges(numbers: Sequence[int]) -> str:
    """`0–3,5` of 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
