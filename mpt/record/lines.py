"""A file of JSON lines that only grows, whole lines at a time, and can be cut back to an offset."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mpt.errors import Problem, RecordError, RunFault
from mpt.record.faults import faults

_CHUNK_BYTES = 1 << 20


def header(schema: str) -> str:
    """Line 1 of a file of that schema."""
    return json.dumps({"schema": schema})


def whole_bytes(fd: int) -> int:
    """Bytes up to and with the last line end: what a kill in mid-line left intact."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def history(path: Path, schema: str, offset: int | None) -> bytes:
    """The whole lines of an older run's file up to `offset` (None: all), without line 1.

    Raises: RecordError when there is no such file, or it is of another schema.
    """
    with faults(path, RecordError):
        first, _, rest = path.read_bytes().partition(b"\n")
    check(path, first, header(schema).encode())
    body = rest if offset is None else rest[: max(0, offset - len(first) - 1)]
    return body[: body.rfind(b"\n") + 1]


def check(path: Path, got: bytes, want: bytes) -> None:
    """Raises: RecordError when line 1 is not ours: another program's file, or another schema."""
    if got != want:
        what = f"line 1 is `{got[:80].decode(errors='replace')}`, want `{want.decode()}`"
        raise RecordError(Problem(str(path), what, "start in a new run_dir=…"))


class Lines:
    """An append-only file whose line 1 is `first`; each append is one unbuffered write.

    The file is opened once: closing another descriptor of it would drop the writer's lock.
    Raises: RunFault when the disk fails; what was whole before stays whole.
    """

    def __init__(self, path: Path, first: str, *, fresh: bool) -> None:
        self.path = path
        self._header = first.encode() + b"\n"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (os.O_EXCL if fresh else 0)
        with faults(path, RecordError):
            self._fd = os.open(path, flags, 0o644)
        self.size = os.fstat(self._fd).st_size
        if self.size == 0:
            self.append(self._header)

    @property
    def start(self) -> int:
        """The offset after line 1."""
        return len(self._header)

    @property
    def fd(self) -> int:
        return self._fd

    def repair(self) -> int:
        """Bytes of a torn last line that were cut off.

        Raises: RecordError, and nothing is cut, when line 1 is not the one asked for.
        """
        with faults(self.path):
            line = os.pread(self._fd, 4096, 0).partition(b"\n")[0]
            whole = whole_bytes(self._fd)
            if whole or not self._header.startswith(line):
                check(self.path, line, self._header.rstrip(b"\n"))
            torn = self.size - whole
            if torn:
                self._cut(whole)
            if whole == 0:
                self.append(self._header)
        return torn

    def last(self) -> bytes:
        """The last line, without its end; empty where only line 1 is there."""
        start = max(self.start, self.size - _CHUNK_BYTES)
        with faults(self.path):
            return os.pread(self._fd, self.size - start, start).rstrip(b"\n").rpartition(b"\n")[2]

    def append(self, data: bytes) -> None:
        """Write whole lines at the end, all or none of them."""
        if not data:
            return
        with faults(self.path):
            if os.fstat(self._fd).st_nlink == 0:
                raise RunFault(Problem(str(self.path), "the file was deleted while the run was going"))
            self._write(data)
        self.size += len(data)

    def cut(self, offset: int) -> bool:
        """Drop what lies after `offset`; False when the file was shorter than that.

        Raises: RecordError when `offset` is in the middle of a line.
        """
        offset = max(offset, self.start)
        if offset > self.size:
            return False
        with faults(self.path):
            if os.pread(self._fd, 1, offset - 1) != b"\n":
                what = f"was changed since the checkpoint: byte {offset} is in the middle of a line"
                raise RecordError(Problem(str(self.path), what, "start in a new run_dir=…"))
            self._cut(offset)
        return True

    def sync(self) -> None:
        """What was appended survives a power loss."""
        with faults(self.path):
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._cut(self.size)
            raise

    def _cut(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self.size = size
