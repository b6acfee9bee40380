"""Signals ask the loop to stop; the loop saves first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, TypeVar

from mpt.errors import ExitCode, Stopped

_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")

PATIENCE_S = 10.0
"""Data that have not come so long after a signal are not waited for: schedulers kill 30 s after theirs."""

T = TypeVar("T")


class NothingComes(Stopped):
    """Raised in a wait for data that goes on PATIENCE_S after a signal; ends the process where nobody saves first."""


class StopRequest:
    """A context manager in which the first signal sets `signal` and a second SIGINT interrupts at once.

    Handlers that were there before are there again afterwards.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}
        self._waits = False

    def __enter__(self) -> StopRequest:
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None:
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.signal is not None and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def fetched(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; after a signal none is waited for longer than PATIENCE_S. Raises: NothingComes."""
        held: list[T] = []
        while True:
            self._waits = True  # as `waiting` does, which would make a generator for each batch
            try:
                held += islice(batches, 1)
            finally:
                self._waits = False
            if not held:
                return
            yield held.pop()  # and hold on to none

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is inside may be left where it is, PATIENCE_S after a signal. Raises: NothingComes."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is None and hasattr(signal, "setitimer"):
            # No thread: one that is started by a handler may wait for a lock that the interrupted code holds.
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._lose_patience)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_S, 1.0)
        self.signal = number

    def _lose_patience(self, number: int, frame: FrameType | None) -> None:
        if self._waits:
            self._waits = False
            raise NothingComes(int(self.exit_code))

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.SIGINT if self.signal == signal.SIGINT else ExitCode.SIGTERM

    @property
    def name(self) -> str:
        """The signal's name (`SIGTERM`)."""
        return signal.Signals(self.signal).name if self.signal is not None else ""
