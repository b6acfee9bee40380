"""Runs the command line in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpt as mpt_package

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(mpt_package.__file__).parents[1])}
"""The same mpt as this process has, wherever it was imported from."""


def mpt(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`mpt …` in `cwd`, which has to end with exit code `code`."""
    done = subprocess.run(
        [sys.executable, "-m", "mpt", *words],
        cwd=cwd,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, f"exit {done.returncode}, want {code}\n{done.stdout}\n{done.stderr}"
    return done


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """`mpt …` in `cwd`, left running."""
    return subprocess.Popen(
        [sys.executable, "-m", "mpt", *words],
        cwd=cwd,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def document(path: Path) -> dict[str, Any]:
    """A JSON file, read strictly."""
    found: dict[str, Any] = json.loads(path.read_text(), parse_constant=_refuse)
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    """A JSONL file, read strictly, without its schema line."""
    rows = [json.loads(line, parse_constant=_refuse) for line in path.read_text().splitlines()]
    assert "schema" in rows[0]
    return rows[1:]


def _refuse(word: str) -> float:
    raise AssertionError(f"{word} is not strict JSON")
