"""Signals ask the loop to stop; the loop saves first."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")


class StopRequest:
    """A context manager in which the first signal sets `signal` and a second SIGINT interrupts at once.

    Handlers that were there before are there again afterwards.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None:
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def name(self) -> str:
        """The signal's name (`SIGTERM`)."""
        return signal.Signals(self.signal).name if self.signal is not None else ""
