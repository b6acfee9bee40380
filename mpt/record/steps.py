"""Step rows to lines of steps.jsonl: the one hot path of the record."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from mpt.errors import Problem, RecordError
from mpt.record.strict import MARK, spell
from mpt.types import StepRow

COLUMNS = StepRow._fields
_FLOATS = ("loss", "lr", "grad_norm", "scale", "time_s", "data_wait_s")


def step_lines(rows: Iterable[StepRow], last: int) -> tuple[bytes, int]:
    """One strict JSON line for each row, and the last step.

    Built by hand: `json.dumps` takes three times as long. Times have nanoseconds, other numbers all their digits.
    Raises: RecordError when steps do not strictly increase from `last`.
    """
    lines = []
    for step, update, applied, loss, lr, norm, scale, samples, time, wait in rows:
        if step <= last:
            raise RecordError(Problem("steps.jsonl", f"step {step} comes after step {last}", "a bug in mpt: report it"))
        last = step
        total = loss + lr + norm + scale + time + wait
        if total - total == 0.0 and total.__class__ is float:  # all finite, all Python's own numbers
            lines.append(
                f'{{"step":{step},"update":{update},"applied":{"true" if applied else "false"},"loss":{loss!r},'
                f'"lr":{lr!r},"grad_norm":{norm!r},"scale":{scale!r},"samples":{samples},'
                f'"time_s":{time:.9f},"data_wait_s":{wait:.9f}}}\n'
            )
        else:
            lines.append(_careful(StepRow(step, update, applied, loss, lr, norm, scale, samples, time, wait)))
    return "".join(lines).encode(), last


def _careful(row: StepRow) -> str:
    """The line of a row that may hold a non-finite number or one of another library's types."""
    members: dict[str, object] = dict(row._asdict())
    members["applied"] = bool(row.applied)
    marks = {}
    for name in _FLOATS:
        number = float(getattr(row, name))
        digits = round(number, 9) if name.endswith("_s") else number
        members[name] = digits if math.isfinite(number) else None
        if not math.isfinite(number):
            marks[name] = spell(number)
    if marks:
        members[MARK] = marks
    return json.dumps(members, allow_nan=False, separators=(",", ":")) + "\n"
