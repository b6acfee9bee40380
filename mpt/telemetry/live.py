"""The live display of a terminal; redrawn only when told to, by no thread of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TextIO

from rich.console import Console as Terminal
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mpt.telemetry.console import Style, figures, metrics_text, place
from mpt.types import Snapshot

_REDRAW_S = 0.1
_STYLES = {"plain": "", "good": "green", "warning": "yellow", "error": "bold red"}


class _Terminal(Terminal):
    """A terminal whose loss is no reason to exit, which is what rich does by default."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class RichConsole:
    """A progress bar and the figures of the last log point under the lines that stay."""

    def __init__(self, stream: TextIO) -> None:
        self._terminal = _Terminal(file=stream, highlight=False, markup=False, emoji=False)
        shared = sys.stdout.isatty()  # else stdout goes to a file, where it has to stay
        self._live = Live(console=self._terminal, auto_refresh=False, transient=True, redirect_stdout=shared)
        self._last_s = float("-inf")
        self._gone = False
        self._snapshot: Snapshot | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._shielded(self._live.stop)

    def start(self, lines: Sequence[str]) -> None:
        for i, line in enumerate(lines):
            self._print(line, "bold" if i == 0 else "")

    def update(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now - self._last_s < _REDRAW_S and snapshot.step < snapshot.total_steps:
            return
        self._last_s = now
        self._snapshot = snapshot
        self._shielded(lambda: self._draw(snapshot))

    def doing(self, what: str) -> None:
        snapshot = self._snapshot
        if snapshot is not None:
            self._shielded(lambda: self._draw(snapshot, what))

    def evaluated(self, step: int, update: int, metrics: Mapping[str, float]) -> None:
        self._print(metrics_text(step, update, metrics), "cyan")

    def say(self, text: str, style: Style = "plain") -> None:
        self._print(text, _STYLES[style])

    def finish(self, lines: Sequence[str]) -> None:
        self._shielded(self._live.stop)
        for i, line in enumerate(lines):
            self._print(line, "bold" if i == 0 else "")

    def _draw(self, snapshot: Snapshot, doing: str = "") -> None:
        if not self._live.is_started:
            self._live.start()
        self._live.update(screen(snapshot, doing), refresh=True)

    def _print(self, line: str, style: str) -> None:
        self._shielded(lambda: self._terminal.print(Text(line, style=style, overflow="fold")))

    def _shielded(self, draw: Callable[[], object]) -> None:
        """A terminal that is gone ends the display, not the run."""
        if self._gone:
            return
        try:
            draw()
        except (OSError, ValueError):
            self._gone = True


def screen(snapshot: Snapshot, doing: str = "") -> Group:
    """The two lines at the bottom; `doing` stands in place of the figures."""
    bar = ProgressBar(total=max(snapshot.total_steps, 1), completed=snapshot.step, complete_style="cyan")
    top = Table.grid(padding=(0, 1), expand=True)
    top.add_column(ratio=1)
    top.add_column(no_wrap=True, justify="right")
    top.add_row(bar, Text(place(snapshot)))
    style = "yellow" if snapshot.skipped else "dim"
    return Group(
        top,
        Text(f"{doing} …" if doing else "   ".join(figures(snapshot)), style=style, no_wrap=True, overflow="ellipsis"),
    )
