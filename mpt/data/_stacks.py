"""What a worker process is doing, asked from outside: its stack, even where it hangs in C."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
from typing import IO

ASK = signal.SIGUSR2
WAIT_S = 2.0
"""How long a stack may take to be written; the handler runs in C and needs no interpreter."""
LINES = 12
"""Innermost frames that are told."""


def show_stack_on_request(fd: int) -> None:
    """This process answers ASK with its stack, written to the inherited `fd`, else to stderr."""
    try:
        os.fstat(fd)
    except OSError:  # a worker that was not forked has not inherited it
        faulthandler.register(ASK, all_threads=False)
        return
    faulthandler.register(ASK, file=fd, all_threads=False)


class Stacks:
    """A nameless file that workers inherit and write their stacks to."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        os.set_inheritable(self._file.fileno(), True)

    @property
    def fd(self) -> int:
        return self._file.fileno()

    def of(self, pid: int) -> str:
        """The innermost frames of that process; empty where it does not answer."""
        before = os.fstat(self.fd).st_size
        try:
            os.kill(pid, ASK)
        except ProcessLookupError:
            return ""
        until = time.monotonic() + WAIT_S
        told = b""
        while time.monotonic() < until:
            size = os.fstat(self.fd).st_size
            now = os.pread(self.fd, size - before, before)
            if now and now == told:  # nothing more came since the last look
                break
            told = now
            time.sleep(0.05)
        frames = [line for line in told.decode(errors="replace").splitlines() if line.startswith("  File")]
        return "\n".join(frames[:LINES])

    def close(self) -> None:
        """Gone from disk too; harmless when called twice."""
        self._file.close()
