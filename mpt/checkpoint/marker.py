"""The marker COMMITTED: what a checkpoint's files must be, and proof that they were all written."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from mpt.checkpoint.schema import OLDER, SCHEMA, readable

MARKER = "COMMITTED"
STATE = "state.pt"

_CHUNK_BYTES = 16 << 20
"""Hashed at once: between two chunks the thread that saves waits for its turn beside the one that trains."""


_MARKER_BYTES = 4096
"""A marker has 250."""
_COUNTS = ("step", "update", "state_bytes")


class Rejected(Exception):
    """Why a folder is no usable checkpoint; never leaves this package."""


@dataclass(frozen=True)
class Marker:
    """A checkpoint's place in the run, and the size and SHA-256 of its state file."""

    step: int
    update: int
    state_bytes: int
    state_sha256: str
    schema: str = SCHEMA

    def dumps(self) -> str:
        """Text that ends in a checksum of itself."""
        body = json.dumps(asdict(self), sort_keys=True)
        return f"{body}\nsha256 {hashlib.sha256(body.encode()).hexdigest()}\n"


def read_marker(folder: Path) -> Marker:
    """The folder's marker. Raises: Rejected with the reason."""
    try:
        if _file_bytes(folder / MARKER) > _MARKER_BYTES:
            raise Rejected(f"{MARKER} is damaged")
        text = (folder / MARKER).read_bytes().decode()
    except FileNotFoundError:
        raise Rejected(f"no {MARKER}: the save was never finished") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"{MARKER} can't be read ({error})") from None
    body, _, seal = text.partition("\n")
    if seal != f"sha256 {hashlib.sha256(body.encode()).hexdigest()}\n":
        raise Rejected(f"{MARKER} is damaged")
    try:
        found = json.loads(body)
        if not readable(found.get("schema")):
            raise Rejected(f"schema {found.get('schema')}, this version reads {', '.join((*OLDER, SCHEMA))}")
        marker = Marker(**found)
        if any(type(getattr(marker, name)) is not int or getattr(marker, name) < 0 for name in _COUNTS):
            raise ValueError("a count is none")
        return marker
    except (ValueError, TypeError, AttributeError):
        raise Rejected(f"{MARKER} is not understood") from None


def _file_bytes(path: Path) -> int:
    """The size of a regular file: reading a pipe or a device would never end. Raises: OSError, Rejected."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise Rejected(f"{path.name} is no regular file")
    return found.st_size


def digest(path: Path) -> str:
    """SHA-256 of the file. Raises: OSError."""
    seen, chunk = hashlib.sha256(), bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(chunk):
            seen.update(memoryview(chunk)[:count])
    return seen.hexdigest()


def verify(folder: Path) -> Marker:
    """The marker, after the state file's size and checksum were found right. Raises: Rejected."""
    marker = read_marker(folder)
    path = folder / STATE
    try:
        size = _file_bytes(path)
        if size != marker.state_bytes:
            raise Rejected(f"{STATE} has {size:,} bytes, {MARKER} says {marker.state_bytes:,}")
        if digest(path) != marker.state_sha256:
            raise Rejected(f"{STATE} does not have the checksum in {MARKER}: the file is damaged")
    except OSError as error:
        raise Rejected(f"{STATE} can't be read ({error.strerror})") from None
    return marker
