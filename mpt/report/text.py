"""The report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from mpt.report.section import Section, Table

_STYLES = {"good": "green", "bad": "bold red", "careful": "yellow", "": "dim"}
_STATUS = {"done": "green", "failed": "bold red", "diverged": "bold red"}

_ANY_WIDTH = 10_000


def render(sections: Sequence[Section], status: str = "") -> Group:
    """All sections; text from a run is never read as markup. `status` is the run's, for its colour."""
    return Group(*(part for section in sections for part in _section(section, status)))


def _section(section: Section, status: str) -> Iterator[RenderableType]:
    yield Text(section.title, style="bold underline")
    if section.facts:
        yield Padding(_facts(section, status), (0, 0, 0, 2))
    for table in section.tables:
        yield Padding(_Fitting(table), (1, 0, 0, 2))
    for tone, sentence in section.notes:
        yield Padding(Text(sentence, style=_STYLES.get(tone, "")), (0, 0, 0, 2))
    yield Text("")


@dataclass(frozen=True)
class _Fitting:
    """A table; where the terminal is too narrow for its longest words, a line of named cells for each row."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = _table(self.table)
        if Measurement.get(console, options.update(max_width=_ANY_WIDTH), whole).minimum <= options.max_width:
            yield whole
            return
        for first, *cells in self.table.rows:
            named = zip(self.table.columns[1:], cells, strict=True)
            yield Text(first)
            yield Padding(Text(" · ".join(f"{name} {cell}" for name, cell in named if cell), style="dim"), (0, 0, 0, 2))


def _facts(section: Section, status: str) -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in section.facts:
        style = _STATUS.get(status, "yellow") if name == "status" else ""
        grid.add_row(Text(name), Text(value, style=style))
    return grid


def _table(table: Table) -> RichTable:
    rich = RichTable(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for i, name in enumerate(table.columns):
        rich.add_column(Text(name), justify="right" if i in table.right else "left", overflow="fold")
    for i, row in enumerate(table.rows):
        rich.add_row(*map(Text, row), style="dim" if i in table.dim else None)
    return rich
