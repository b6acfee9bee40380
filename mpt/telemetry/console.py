"""What a run shows while it goes on: a live display in a terminal, plain lines elsewhere; all of it on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, Self, TextIO

from mpt.types import Snapshot
from mpt.units import bytes_text, number_text, seconds_text

Style = Literal["plain", "good", "warning", "error"]

LINE_EVERY_S = 2.0
"""Shortest time between two progress lines where there is no terminal."""


class Console(Protocol):
    """A context manager; the terminal is as it was once it is left, however that happens.

    A stream that is gone (a closed pipe, a lost terminal) ends the display, never the run.
    """

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    def start(self, lines: Sequence[str]) -> None:
        """What will run, before it does."""

    def update(self, snapshot: Snapshot) -> None:
        """Where the run stands, at a log point."""

    def doing(self, what: str) -> None:
        """What keeps the run between two steps; the next update ends it."""

    def evaluated(self, step: int, update: int, metrics: Mapping[str, float]) -> None:
        """The metrics of an evaluation."""

    def say(self, text: str, style: Style = "plain") -> None:
        """One sentence that stays on the screen."""

    def finish(self, lines: Sequence[str]) -> None:
        """The live display goes, the summary stays."""


def make_console(*, quiet: bool = False, stream: TextIO | None = None) -> Console:
    """The console that fits `stream` (stderr): live on a terminal, lines elsewhere, silent when asked."""
    stream = stream or sys.stderr
    if quiet:
        return QuietConsole()
    if stream.isatty():
        from mpt.telemetry.live import RichConsole

        return RichConsole(stream)
    return LineConsole(stream)


def figures(snapshot: Snapshot) -> list[str]:
    """The figures of a log point, a phrase each."""
    told = [f"loss {number_text(snapshot.loss)}", f"lr {number_text(snapshot.lr, 3)}"]
    if snapshot.scale != 1:
        told.append(f"scale {number_text(snapshot.scale)}")
    if snapshot.skipped:
        told.append(f"skipped {snapshot.skipped:,}")
    if snapshot.samples_per_s is not None:
        told.append(f"{number_text(snapshot.samples_per_s, 3)} samples/s")
    if snapshot.memory_bytes is not None:
        told.append(bytes_text(snapshot.memory_bytes))
    return told + [f"{name} {_value(value)}" for name, value in snapshot.extra.items()]


def place(snapshot: Snapshot) -> str:
    """Step, epoch and time left."""
    left = "" if snapshot.eta_s is None else f" · {seconds_text(snapshot.eta_s)} left"
    return f"{snapshot.step:,}/{snapshot.total_steps:,} steps · epoch {snapshot.epoch:.2f}{left}"


def metrics_text(step: int, update: int, metrics: Mapping[str, float]) -> str:
    """One line for an evaluation."""
    where = f"step {step:,}" if step == update else f"step {step:,} (update {update:,})"
    return f"{where}: " + ", ".join(f"{name} {_value(value)}" for name, value in metrics.items())


def _value(value: object) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


class QuietConsole:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def start(self, lines: Sequence[str]) -> None:
        return

    def update(self, snapshot: Snapshot) -> None:
        return

    def doing(self, what: str) -> None:
        return

    def evaluated(self, step: int, update: int, metrics: Mapping[str, float]) -> None:
        return

    def say(self, text: str, style: Style = "plain") -> None:
        return

    def finish(self, lines: Sequence[str]) -> None:
        return


class LineConsole:
    """One line for each thing that happened, and for log points at most one in LINE_EVERY_S."""

    def __init__(self, stream: TextIO, every_s: float = LINE_EVERY_S) -> None:
        self._stream: TextIO | None = stream
        self._every_s = every_s
        self._last_s = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def start(self, lines: Sequence[str]) -> None:
        self._print(*lines)

    def update(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        last_step = snapshot.step >= snapshot.total_steps
        if now - self._last_s >= self._every_s or last_step:
            self._last_s = now
            self._print(" · ".join([place(snapshot), *figures(snapshot)]))

    def doing(self, what: str) -> None:
        return

    def evaluated(self, step: int, update: int, metrics: Mapping[str, float]) -> None:
        self._print(metrics_text(step, update, metrics))

    def say(self, text: str, style: Style = "plain") -> None:
        self._print(text if style in ("plain", "good") else f"{style}: {text}")

    def finish(self, lines: Sequence[str]) -> None:
        self._print(*lines)

    def _print(self, *lines: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.writelines(f"{line}\n" for line in lines)
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone, or the stream was closed: the run matters more
            self._stream = None
