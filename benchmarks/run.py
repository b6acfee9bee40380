"""All rows, each in a fresh process, into one file: `python benchmarks/run.py --rows 1,2`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROWS = {
    1: "step_overhead.py",
    2: "textbook.py",
    3: "host_reads.py",
    4: "realistic.py",
    5: "half_cpu.py",
    6: "emulated.py",
    7: "low_bit.py",
    8: "float32_amd.py",
    9: "memory.py",
    10: "bytes_held.py",
    11: "predicted_memory.py",
    12: "predicted_time.py",
    13: "help.py",
    14: "startup.py",
    15: "sweep_job.py",
    16: "compare_runs.py",
    17: "record.py",
    18: "save.py",
    19: "images.py",
    22: "numerics.py",
    23: "kept_memory.py",
    24: "compiled_memory.py",
}
LIMIT_S = 600
"""A row that takes longer than this is stopped, and said to have failed."""


def main() -> int:
    """Measure the rows asked for, write results/<date>.json, and tell which failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="numbers, comma between")
    parser.add_argument("--repeats", type=int, help="of each program, instead of each row's own number")
    parser.add_argument("--out", type=Path, help="where to write; default: results/<date>.json")
    args = parser.parse_args()
    documents, failed = [], []
    for row in [int(word) for word in args.rows.split(",")]:
        document = measured(row, args.repeats)
        if document is None:
            failed.append(row)
        else:
            documents.append(document)
    if documents:
        out = args.out or RESULTS / f"{datetime.now(UTC):%Y-%m-%d}.json"
        save(out, documents)
        print(f"written: {out}")
    if failed:
        print(f"failed: rows {', '.join(map(str, failed))}", file=sys.stderr)
    return 1 if failed else 0


def measured(row: int, repeats: int | None) -> dict[str, Any] | None:
    """One row's document; None where it failed, which was told."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, str(HERE / ROWS[row]), "--json", str(out)]
        if repeats is not None:
            command += ["--repeats", str(repeats)]
        try:
            code = subprocess.run(command, timeout=LIMIT_S, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"row {row}: stopped after {LIMIT_S} s", file=sys.stderr)
            return None
        if code != 0:
            return None
        document: dict[str, Any] = json.loads(out.read_text())
        return document


def save(path: Path, documents: list[dict[str, Any]]) -> None:
    """One document of all cells; rows measured now take the place of the file's older ones."""
    cells = [cell | {"machine": d["machine"]} for d in documents for cell in d["cells"]]
    fresh = {cell["row"] for cell in cells}
    if path.exists():
        cells += [cell for cell in json.loads(path.read_text())["cells"] if cell["row"] not in fresh]
    cells.sort(key=lambda cell: cell["row"])
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"schema": documents[0]["schema"], "cells": cells}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
