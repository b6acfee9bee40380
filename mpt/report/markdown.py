"""The report as Markdown, for report.md and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mpt.report.section import Section, Table

_SPECIAL = re.compile(r"([\\`*_\[\]#|~])")
_MARKS = {"good": "✓ ", "bad": "✗ ", "careful": "⚠ "}


def to_markdown(sections: Sequence[Section]) -> str:
    """All sections; text from a run can't form markup, links or HTML."""
    first, *others = sections
    parts = [f"# {escape(first.title)}", *_body(first)]
    for section in others:
        parts += [f"## {escape(section.title)}", *_body(section)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """The text as Markdown shows it literally, HTML included."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)


def _body(section: Section) -> Iterator[str]:
    if section.facts:
        yield "\n".join(f"- **{escape(name)}**: {escape(value)}" for name, value in section.facts)
    for table in section.tables:
        yield _table(table)
    if section.notes:
        yield "\n".join(f"- {_MARKS.get(tone, '')}{escape(sentence)}" for tone, sentence in section.notes)


def _table(table: Table) -> str:
    rule = ("---:" if i in table.right else "---" for i in range(len(table.columns)))
    lines = [table.columns, tuple(rule), *table.rows]
    return "\n".join(
        "| " + " | ".join(cell if i == 1 else escape(cell) for cell in line) + " |" for i, line in enumerate(lines)
    )
