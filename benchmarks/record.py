"""Row 17 of the performance table: what the record of one step costs, in microseconds.

    python benchmarks/record.py [--json] [--repeats 9] [--rows 20000] [--batch 50]

Ours writes `--batch` rows a call (one log interval) through RunWriter to a real file; the peer is what most loops do:
`json.dumps` of a dict and one buffered write a step. Both are timed in turn, order swapped each repeat. The target is
3 µs a row; a result whose noise (90th / 10th percentile) passes 1.1 is void.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpt.record.writer import RunWriter
from mpt.types import StepRow

TARGET_US = 3.0


def rows(count: int) -> list[StepRow]:
    """Rows with numbers as long as real ones: floats that were float32 on the device, times to the nanosecond."""
    draw = random.Random(0).random
    return [
        StepRow(i, i, True, draw() * 3, draw() * 1e-3, draw() * 10, 65536.0, 64, draw() / 100, draw() / 1e5)
        for i in range(1, count + 1)
    ]


def ours(folder: Path, data: Sequence[StepRow], batch: int) -> float:
    """Seconds a row."""
    with RunWriter(folder) as writer:
        start = time.perf_counter()
        for i in range(0, len(data), batch):
            writer.steps(data[i : i + batch])
        return (time.perf_counter() - start) / len(data)


def peer(folder: Path, data: Sequence[StepRow], batch: int) -> float:
    """Seconds a row of `json.dumps`, flushed as often as ours."""
    folder.mkdir()
    with (folder / "steps.jsonl").open("w") as file:
        start = time.perf_counter()
        for i, row in enumerate(data, 1):
            file.write(json.dumps(row._asdict()) + "\n")
            if i % batch == 0:
                file.flush()
        return (time.perf_counter() - start) / len(data)


def measure(repeats: int, count: int, batch: int) -> dict[str, Any]:
    """Microseconds a row of both, in turn."""
    data = rows(count)
    times: dict[str, list[float]] = {"ours": [], "json.dumps": []}
    ways: list[tuple[str, Callable[[Path, Sequence[StepRow], int], float]]] = [("ours", ours), ("json.dumps", peer)]
    with tempfile.TemporaryDirectory() as temp:
        for name, way in ways:  # warm-up
            way(Path(temp) / f"warm-{name}", data, batch)
        for i in range(repeats):
            for name, way in ways if i % 2 == 0 else ways[::-1]:
                times[name].append(1e6 * way(Path(temp) / f"{name}-{i}", data, batch))
    return {
        "row": 17,
        "what": "record of a step, microseconds",
        "rows": count,
        "rows_per_call": batch,
        "target_us": TARGET_US,
        **{name: spread(values) for name, values in times.items()},
        "ratio": statistics.median(times["ours"]) / statistics.median(times["json.dumps"]),
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """p10, median and p90 of n repeats, and whether they are too noisy to count."""
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    noise = deciles[8] / deciles[0]
    middle = statistics.median(values)
    return {"n": len(values), "p10_us": deciles[0], "median_us": middle, "p90_us": deciles[8], "void": noise > 1.1}


def text(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = [f"record of a step: {result['rows']:,} rows, {result['rows_per_call']} a call"]
    for name in ("ours", "json.dumps"):
        one = result[name]
        void = "  (void: noise over 10 %)" if one["void"] else ""
        figures = f"{one['median_us']:6.2f} µs a row  (p10 {one['p10_us']:.2f}, p90 {one['p90_us']:.2f}, n {one['n']})"
        lines.append(f"  {name:<12}{figures}{void}")
    reached = "reached" if result["ours"]["p10_us"] <= TARGET_US else "missed"
    return "\n".join([*lines, f"  ratio {result['ratio']:.2f}; target {TARGET_US:g} µs: {reached} (p10)"])


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=50)
    options = parser.parse_args(argv)
    result = measure(options.repeats, options.rows, options.batch)
    print(json.dumps(result, indent=2) if options.json else text(result))


if __name__ == "__main__":
    main(sys.argv[1:])
