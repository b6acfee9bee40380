"""Puts the newest results into docs/performance.md: `python benchmarks/report.py [results/DATE.json]`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOC = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- results: made by benchmarks/report.py -->", "<!-- end of results -->"


def main() -> None:
    """Rewrite the part of the document between the two marks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", help="default: the newest in benchmarks/results")
    path = parser.parse_args().results or max((HERE / "results").glob("*.json"))
    cells = json.loads(path.read_text())["cells"]
    before, _, rest = DOC.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOC.write_text(f"{before}{BEGIN}\n{table(cells)}\n{END}{after}")
    print(f"{DOC}: {len(cells)} cells of {path.name}")


def table(cells: list[dict[str, Any]]) -> str:
    """The cells, where they were measured, and what ran."""
    head = [
        "| row | what | ours | peer | figure | target | verdict | noise | n |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines = [line(cell) for cell in cells]
    whats: dict[str, list[str]] = {}
    for cell in cells:
        whats.setdefault(cell["what"], []).append(f"{cell['row']} {cell['name']}")
    told = [f"- **{_span(names)}**: {what}." for what, names in whats.items()]
    return "\n".join([*places(cells), "", *head, *lines, "", *told])


def places(cells: list[dict[str, Any]]) -> list[str]:
    """One line for each machine and day."""
    seen: dict[str, set[int]] = {}
    for cell in cells:
        m = cell["machine"]
        told = f"{m['date'][:10]}, {m['cpu']}, {m['cores']} cores, Python {m['python']}, torch {m['torch']}"
        seen.setdefault(told, set()).add(cell["row"])
    return [f"Rows {', '.join(map(str, sorted(rows)))}: measured {told}." for told, rows in seen.items()]


def line(cell: dict[str, Any]) -> str:
    """One row of the table."""
    unit = "" if cell["unit"] == "count" else f" {cell['unit'].replace('us', 'µs')}"
    peer = f"{cell['peer']['median']:.4g}{unit}" if cell["peer"] else "–"
    figure = f"{cell['figure']:.3g}" + ("" if cell["how"] == "ours / peer" else unit)
    sign = {"ours / peer": "ratio ", "ours - peer": "difference "}.get(cell["how"], "")
    target = "–" if cell["limit"] is None else f"≤ {cell['limit']:g}"
    ours, noise = f"{cell['ours']['median']:.4g}{unit}", "exact" if cell["unit"] == "count" else f"{cell['noise']:.0%}"
    parts = [cell["row"], cell["name"], ours, peer, sign + figure, target, cell["verdict"], noise, cell["ours"]["n"]]
    return "| " + " | ".join(map(str, parts)) + " |"


def _span(names: list[str]) -> str:
    row = names[0].split()[0]
    if all(name.split()[0] == row for name in names):
        return f"row {row}: " + ", ".join(name.removeprefix(f"{row} ") for name in names)
    return ", ".join(names)


if __name__ == "__main__":
    main()
