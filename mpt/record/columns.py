"""steps.jsonl read as columns: fast for long runs, and forgiving of torn and foreign lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from mpt.errors import Problem, RecordError
from mpt.record.strict import MARK, loads, restored
from mpt.types import StepRow

_CHUNK = 500  # lines parsed at a time as one array: half the time of one by one, and still in the processor's cache
_get = itemgetter(*StepRow._fields)


@dataclass
class Steps:
    """One list for each member of StepRow, in the order of steps; NaN and infinities are floats again."""

    step: list[int] = field(default_factory=list)
    update: list[int] = field(default_factory=list)
    applied: list[bool] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    data_wait_s: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.step)

    def rows(self) -> Iterator[StepRow]:
        """The rows again."""
        return map(StepRow, *(getattr(self, name) for name in StepRow._fields))


def read_lines(path: Path, schema: str) -> tuple[list[bytes], bool]:
    """The whole lines after line 1, and whether a torn one follows them.

    Raises: RecordError when there is no such file, or line 1 names another schema.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(Problem(str(path), f"can't be read: {error.strerror}")) from error
    lines = data.split(b"\n")
    torn = lines.pop() != b""
    if not lines:
        raise RecordError(Problem(str(path), "is empty or cut in its first line", "the run never took a step"))
    check_schema(path, lines[0], schema)
    return lines[1:], torn


def check_schema(path: Path, line: bytes, schema: str) -> None:
    """Raises: RecordError when the line is not `{"schema": …}` of this version's `schema`."""
    try:
        got = json.loads(line)["schema"]
    except (ValueError, KeyError, TypeError):
        got = None
    if got == schema:
        return
    ours, _, number = schema.partition("/")
    if isinstance(got, str) and got.startswith(f"{ours}/") and got.partition("/")[2].isdigit():
        newer = int(got.partition("/")[2]) > int(number)
        hint = "read it with a newer mpt" if newer else "read it with an older mpt"
        raise RecordError(Problem(str(path), f"schema {got}, this version reads {schema}", hint))
    raise RecordError(Problem(str(path), "is not a record of mpt", "give the folder of an mpt run"))


def parse_steps(lines: Sequence[bytes]) -> tuple[Steps, int]:
    """Columns of the lines that are steps in increasing order, and how many others were skipped."""
    steps = Steps()
    columns = [getattr(steps, name) for name in StepRow._fields]
    bad = 0
    for start in range(0, len(lines), _CHUNK):
        rows, skipped = _rows(lines[start : start + _CHUNK], columns[0][-1] if columns[0] else 0)
        bad += skipped
        for column, values in zip(columns, zip(*rows, strict=True), strict=False):
            column.extend(values)
    return steps, bad


def parse_rows(lines: Sequence[bytes]) -> tuple[list[dict[str, Any]], int]:
    """The objects in lines of events or evaluations, and how many lines were none."""
    rows = []
    for line in lines:
        try:
            row = loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(restored(row))
    return rows, len(lines) - len(rows)


def _rows(lines: Sequence[bytes], last: int) -> tuple[list[tuple[Any, ...]], int]:
    """The chunk at once where all is well, else line by line."""
    text = b",".join(lines)
    if MARK.encode() not in text:
        try:
            rows = list(map(_get, json.loads(b"[" + text + b"]")))
        except (ValueError, KeyError, TypeError):
            return _rows_singly(lines, last)
        if len(rows) == len(lines) and _increases([last, *(row[0] for row in rows)]) and _numbers(rows):
            return rows, 0
    return _rows_singly(lines, last)


def _rows_singly(lines: Sequence[bytes], last: int) -> tuple[list[tuple[Any, ...]], int]:
    rows = []
    for line in lines:
        try:
            row = _get(restored(loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if _numbers([row]) and row[0] > last:
            rows.append(row)
            last = row[0]
    return rows, len(lines) - len(rows)


def _increases(steps: Sequence[Any]) -> bool:
    return all(type(b) is int and a < b for a, b in pairwise(steps))


def _numbers(rows: Sequence[tuple[Any, ...]]) -> bool:
    """Whether no member is text, a container or null."""
    kinds = {type(value) for row in rows for value in row}
    return kinds <= {int, float, bool}
