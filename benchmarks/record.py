"""Row 17: what the record of one step costs, against `json.dumps` of a dict and a buffered write, flushed as often."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from _cells import Cell, ratio, value
from _measure import Effort, interleaved
from _row import main

from mpt.record.writer import RunWriter
from mpt.types import StepRow

LIMIT_US = 3.0
STEPS = 20_000
A_CALL = 50
"""Rows a write: trainer.log_every's default."""
WHAT = f"{STEPS} rows to a real file, {A_CALL} a call; numbers as long as those of a run"


def rows() -> list[StepRow]:
    """Losses and norms with all digits of a double, times in nanoseconds."""
    draw = random.Random(0).random
    return [
        StepRow(i, i, True, draw() * 3, draw() * 1e-3, draw() * 10, 65536.0, 64, draw() / 100, draw() / 1e5)
        for i in range(1, STEPS + 1)
    ]


def ours_us(folder: Path, data: Sequence[StepRow]) -> float:
    """Microseconds a row of RunWriter."""
    with RunWriter(folder) as writer:
        start_s = time.perf_counter()
        for i in range(0, len(data), A_CALL):
            writer.steps(data[i : i + A_CALL])
        return 1e6 * (time.perf_counter() - start_s) / len(data)


def peer_us(folder: Path, data: Sequence[StepRow]) -> float:
    """Microseconds a row of what most loops do."""
    folder.mkdir()
    with (folder / "steps.jsonl").open("w") as file:
        start_s = time.perf_counter()
        for i, row in enumerate(data, 1):
            file.write(json.dumps(row._asdict()) + "\n")
            if i % A_CALL == 0:
                file.flush()
        return 1e6 * (time.perf_counter() - start_s) / len(data)


def measure(effort: Effort) -> list[Cell]:
    """Microseconds a row, and the ratio to the peer."""
    data, fresh = rows(), count()
    with tempfile.TemporaryDirectory() as temp:
        programs = {
            "ours": lambda: ours_us(Path(temp) / str(next(fresh)), data),
            "peer": lambda: peer_us(Path(temp) / str(next(fresh)), data),
        }
        figures = interleaved(programs, effort)
    return [
        value(17, "record of a step", figures["ours"], LIMIT_US, WHAT, unit="us"),
        ratio(17, "record of a step / json.dumps", figures["ours"], figures["peer"], None, WHAT, unit="us"),
    ]


if __name__ == "__main__":
    main(measure, __doc__, repeats=20)
