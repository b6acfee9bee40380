"""docs/reliability.md names tests that exist, and accounts for every field report of its themes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
THEMES = {
    "B": (1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13),
    "C": (2, 3, 4, 5, 7, 8, 9),
    "F": (1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13),
    "G": (1, 2, 3, 5, 6, 7, 8, 9),
    "H": (1, 2, 4, 5, 7, 8),
    "I": (1, 2, 3, 5, 6, 7, 9, 10, 12, 13),
}


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 80
    tests = {
        file: {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        for file, _ in named
    }
    assert [f"{file}::{name}" for file, name in named if name not in tests[file]] == []


def test_every_field_report_of_these_themes_has_a_test_or_says_what_it_would_take() -> None:
    rows = re.findall(r"^\| ((?:[A-Z]\d+(?:, )?)+) \| (.+) \|$", PAGE, re.MULTILINE)
    told = {name: shown for ids, shown in rows for name in ids.split(", ")}
    assert told.keys() == {f"{theme}{n}" for theme, numbers in THEMES.items() for n in numbers}
    without = {name for name, shown in told.items() if "::" not in shown}
    assert without == {"B7", "G7"}


def test_every_row_of_faults_ends_with_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line and line.count("|") == 4]
    faults = [row for row in rows if not row.startswith(("| fault", "| door", "| id"))]
    assert len(faults) >= 40
    assert [row for row in faults if "::" not in row] == []
