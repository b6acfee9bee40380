"""All jobs of a sweep in one table: live in a terminal, a line for each ending elsewhere, whole at the end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.live import Live
from rich.table import Table
from rich.text import Text

from mpt.commands._console import console, table
from mpt.commands._sweep.folder import FINISHED, RUNNING, WAITING, State, SweepFolder, progress, result
from mpt.report.section import clean
from mpt.units import seconds_text

_EVERY_S = 0.5
_STYLES = {FINISHED: "green", RUNNING: "cyan", WAITING: "dim"}


class Board:
    """Shows the sweep's folder while it changes; a context manager. `live`: whether jobs leave the terminal alone."""

    def __init__(self, folder: SweepFolder, labels: Sequence[str], *, live: bool) -> None:
        self._folder, self._labels = folder, tuple(labels)
        self._out = console(stderr=True)
        self._live = Live(console=self._out, auto_refresh=False) if live and self._out.is_terminal else None
        self._watches = live
        self._told = {s.number for s in folder.states(labels) if s.status not in (WAITING, RUNNING)}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mpt-sweep-board", daemon=True)

    def __enter__(self) -> Board:
        if self._live:
            self._live.start()
        if self._watches:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        if self._watches:
            self._thread.join()
        if self._live:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def print(self) -> None:
        """The whole table, with every reason."""
        states = self._folder.states(self._labels)
        ran = sum(s.status not in (WAITING, RUNNING) for s in states)
        self._out.print()
        self._out.print(_table(states, f"{ran} of {len(states)} jobs ran"))

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._refresh()
        self._refresh()

    def _refresh(self) -> None:
        states = self._folder.states(self._labels)
        if self._live:
            done = sum(s.status not in (WAITING, RUNNING) for s in states)
            self._live.update(
                _table(_window(states, self._out.height - 6), f"{done} of {len(states)} jobs"), refresh=True
            )
            return
        for state in states:
            if state.number not in self._told and state.status not in (WAITING, RUNNING):
                self._told.add(state.number)
                print(f"job {state.number}: {clean(state.label)}: {_told(state)}", file=sys.stderr)


def _window(states: list[State], height: int) -> list[State]:
    """As many rows as fit, those that are running among them."""
    first = next((i for i, s in enumerate(states) if s.status in (RUNNING, WAITING)), len(states))
    start = max(0, min(first - height // 2, len(states) - height))
    return states[start : start + max(height, 3)]


def _table(states: Sequence[State], title: str) -> Table:
    shown = table("job", "overrides", "status", "exit", "time", "result or reason", "folder", title=title)
    for s in states:
        status = Text(s.status, style=_STYLES.get(s.status, "bold red"))
        code = "" if s.exit_code is None else str(s.exit_code)
        time = "" if s.elapsed_s is None else seconds_text(s.elapsed_s)
        told = clean(_detail(s))
        shown.add_row(str(s.number), Text(clean(s.label)), status, code, time, Text(told), Text(_short(s.folder)))
    return shown


def _detail(state: State) -> str:
    if state.status == RUNNING:
        return progress(Path(state.folder))
    return result(Path(state.folder)) if state.status == FINISHED else state.reason


def _told(state: State) -> str:
    time = f" in {seconds_text(state.elapsed_s)}" if state.elapsed_s is not None else ""
    detail = clean(_detail(state))
    return f"{state.status}{time}" + (f" ({detail})" if detail else "")


def _short(folder: str) -> str:
    """As the user would type it from here."""
    if not folder:
        return ""
    path, here = Path(folder), Path.cwd()
    return clean(path.relative_to(here) if path.is_relative_to(here) else path)
