"""Where tables for people go."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 160
"""Columns where the output is no terminal: wide enough that no name is cut."""


def console(stderr: bool = False) -> Console:
    """A rich console on stdout or stderr."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False)


def table(*headers: str, title: str | None = None) -> Table:
    """A plain table; columns wrap, nothing is cut."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for header in headers:
        made.add_column(header, overflow="fold")
    return made


def print_json(document: dict[str, Any]) -> None:
    """One strict JSON document on stdout."""
    print(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))
