"""Signals and worker processes: interrupts are the training process's alone, a worker's death is told to who waits."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held() -> Iterator[None]:
    """Processes and threads that start inside get no interrupt before they have seen to it; this one gets it after."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_TO_ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals(worker: int) -> None:
    """An interrupt reaches the whole process group, but the training process decides when workers end."""
    for sent in _SENT_TO_ALL:
        signal.signal(sent, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SENT_TO_ALL)


class Deaths:
    """torch's handler of a worker's death, which raises wherever the program is: here in waits for a batch alone."""

    def __init__(self) -> None:
        self._torchs: Callable[[int, FrameType | None], Any] | None = None
        self._seen: dict[int, RuntimeError] = {}
        self._waiting: list[int] = []

    def follow(self) -> None:
        """From now on, where this thread is the one that gets signals."""
        handler = signal.getsignal(signal.SIGCHLD)
        if threading.current_thread() is threading.main_thread() and callable(handler) and handler != self.handle:
            self._torchs = handler
            signal.signal(signal.SIGCHLD, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raises what torch does, in a wait for batches of the worker that died: in this one or in the next."""
        assert self._torchs is not None, "it is installed by follow"
        try:
            self._torchs(number, frame)
        except RuntimeError as error:
            named = re.search(r"\bpid (\d+)", str(error))
            if named is None:
                raise
            self._seen[int(named[1])] = error
            self._tell()

    def next_of(self, batches: Iterator[T], pids: list[int]) -> T:
        """The next batch of these workers. Raises: RuntimeError where one of them has died."""
        self._waiting = pids
        try:
            self._tell()
            return next(batches)
        finally:
            self._waiting = []

    def forget(self, pids: list[int]) -> None:
        """Workers that were ended."""
        for pid in pids:
            self._seen.pop(pid, None)

    def _tell(self) -> None:
        for pid in self._waiting:
            if pid in self._seen:
                raise self._seen.pop(pid)


DEATHS = Deaths()
"""A process has one handler of a signal."""
