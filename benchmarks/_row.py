"""The command line that every row shares: measure, print a line for each cell, write JSON where asked."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from _cells import Cell
from _machine import machine
from _measure import MIN_REPEATS, Effort

SCHEMA = "mpt.benchmarks/1"


Measure = Callable[[Effort], list[Cell]]


def main(measure: Measure, about: str | None, *, repeats: int = 40, budget_s: float = 60) -> None:
    """Run one row as a program; `--repeats 5` is the quickest, and then says little."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"of each program; at least {MIN_REPEATS}")
    parser.add_argument("--budget-s", type=float, default=budget_s, help="seconds for each cell, about")
    parser.add_argument("--json", type=Path, help="where to write the cells")
    args = parser.parse_args()
    cells = measure(Effort(max(args.repeats, MIN_REPEATS), args.budget_s))
    for cell in cells:
        print(cell.line(), flush=True)
    if args.json:
        write(args.json, cells)


def write(path: Path, cells: list[Cell]) -> None:
    """The cells with the machine that they were measured on."""
    document = {"schema": SCHEMA, "machine": machine(), "cells": [cell.to_json() for cell in cells]}
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
