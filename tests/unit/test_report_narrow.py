"""Tables in terminals that are too narrow for them."""

from __future__ import annotations

import io

from rich.console import Console

from mpt.report.section import Section, Table
from mpt.report.text import render

TABLE = Table(("device", "largest batch", "step"), (("h100", "1,058", "47.5 ms"), ("a100", "222", "")), right=(1, 2))


def shown(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(render([Section("s", "t", tables=(TABLE,))]))
    return out.getvalue()


def test_a_number_is_never_broken_in_two() -> None:
    wide, narrow = shown(60), shown(22)
    assert "h100            1,058  47.5 ms" in wide
    for text in (wide, narrow):
        assert "1,058" in text
    assert "device" in wide
    words = " ".join(narrow.split())
    assert words == "t h100 largest batch 1,058 · step 47.5 ms a100 largest batch 222"
