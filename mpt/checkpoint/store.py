"""Saves, finds and loads checkpoints; an older one is never lost to a failed newer one."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from mpt.checkpoint._disk import dump, fault, remove, sync, write
from mpt.checkpoint.marker import MARKER, STATE, Marker, Rejected, digest, read_marker, verify
from mpt.checkpoint.plain import check_plain, size_bytes
from mpt.checkpoint.schema import migrated
from mpt.errors import CheckpointError, Problem, RunFault, first_line

BEST = "BEST"
"""A file in the folder of checkpoints that names the best one."""

_NAME = re.compile(r"update-(\d{6,})(\.old)?")
_SLACK_BYTES = 1 << 20
_NO_ZIP = (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, LookupError, TypeError, AttributeError)
"""What torch.load raises for bytes that it can't read."""


class CheckpointStore:
    """Folders `update-000800` in `dir`: the newest `keep`, and the best one.

    A save lies in a hidden folder until it is complete and synced; a rename makes it a checkpoint.
    """

    def __init__(self, dir: Path, keep: int) -> None:
        assert keep >= 1, f"keep is {keep}"
        self.dir = Path(dir)
        self._keep = keep
        self._made = False

    def save(self, state: Mapping[str, Any], *, step: int, update: int, keeping: Sequence[int] = ()) -> Path:
        """The state is on disk as the newest checkpoint, and older ones beyond `keep` are gone but for steps `keeping`.

        Checkpoints of a later step belong to a course that the run has left, and go too.
        Raises: RunFault when the disk fails, with all older ones intact; TypeError for state that is not plain.
        """
        check_plain(state)
        target = self.dir / _name(update)
        try:
            # Only once with its parents: a run folder that was moved or deleted is a fault, not a reason for a new one.
            self.dir.mkdir(parents=not self._made, exist_ok=True)
            self._made = True
            self._sweep()
            self._check_space(size_bytes(state))
            self._commit(state, step, update, target)
            self._prune(step, target, keeping)
        except OSError as error:
            raise fault(target, error) from error
        return target

    def mark_best(self, update: int) -> None:
        """The checkpoint of that update is kept until another is marked. Raises: RunFault."""
        temp = self.dir / f".{BEST}.tmp"
        try:
            write(temp, f"{_name(update)}\n".encode())
            temp.replace(self.dir / BEST)
        except OSError as error:
            raise fault(self.dir / BEST, error) from error

    def best(self) -> Path | None:
        """The checkpoint that was marked best, if it is there."""
        try:
            # What is no file may never end.
            name = (self.dir / BEST).read_text(errors="replace").strip() if (self.dir / BEST).is_file() else ""
        except OSError:
            return None
        path = self.dir / name
        return path if _NAME.fullmatch(name) and (path / MARKER).is_file() else None

    def newest_valid(self) -> tuple[Path | None, list[tuple[Path, str]]]:
        """The newest checkpoint whose checksum is right, and newer ones whose is not.

        The second part gives the reason for each that was rejected.
        """
        rejected = []
        for path in self.newest_first():
            try:
                verify(path)
            except Rejected as why:
                rejected.append((path, str(why)))
                continue
            return path, rejected
        return None, rejected

    def holds(self, update: int) -> bool:
        """Whether there is a checkpoint of that update."""
        return (self.dir / _name(update) / MARKER).is_file()

    def of_steps(self, steps: Sequence[int]) -> Path | None:
        """The first valid checkpoint of these steps, in their order."""
        found = {_step(path): path for path in self.newest_first()}
        for step in steps:
            if step in found:
                with suppress(Rejected):
                    verify(found[step])
                    return found[step]
        return None

    def forget_after(self, step: int) -> list[str]:
        """Checkpoints of later steps are gone; their names. Raises: RunFault."""
        later = [p for p in self.newest_first() if _step(p) > step]
        try:
            for path in later:
                remove(path)
        except OSError as error:
            raise fault(self.dir, error) from error
        return [path.name for path in later]

    def _commit(self, state: Mapping[str, Any], step: int, update: int, target: Path) -> None:
        temp = self.dir / f".{target.name}.tmp"
        try:
            temp.mkdir()
            dump(state, temp / STATE)
            size = (temp / STATE).stat().st_size
            marker = Marker(step=step, update=update, state_bytes=size, state_sha256=digest(temp / STATE))
            write(temp / MARKER, marker.dumps().encode())
            sync(temp)
            self._put(temp, target)
        finally:
            shutil.rmtree(temp, ignore_errors=True)

    def _put(self, temp: Path, target: Path) -> None:
        """`target` is the new checkpoint; at every moment it, or the one before it as `.old`, is there."""
        old = target.with_name(f"{target.name}.old")
        if os.path.lexists(target):
            remove(old)
            target.rename(old)
        temp.rename(target)
        sync(self.dir)
        with suppress(OSError):
            remove(old)

    def _check_space(self, state_bytes: int) -> None:
        free, wants = shutil.disk_usage(self.dir).free, state_bytes + _SLACK_BYTES
        if free < wants:
            what = f"no space for a checkpoint: it takes {wants / 1e6:,.0f} MB, {free / 1e6:,.0f} MB are free"
            hint = "free some space, lower checkpoint.keep, or set checkpoint.dir to another disk; then resume=auto"
            raise RunFault(Problem(str(self.dir), what, hint))

    def _sweep(self) -> None:
        """Remove what killed saves left behind."""
        for path in self.dir.glob(".update-*.tmp"):
            remove(path)

    def _prune(self, step: int, newest: Path, keeping: Sequence[int]) -> None:
        earlier = [p for p in self.newest_first() if p != newest and _step(p) < step]
        kept = {newest, self.best(), *earlier[: self._keep - 1], *(p for p in earlier if _step(p) in keeping)}
        for path in self.newest_first():
            if path not in kept:
                remove(path)

    def newest_first(self) -> list[Path]:
        """Checkpoint folders, valid or not, by update; one that replaces an `.old` before it."""
        try:
            found = [(m, p) for p in self.dir.iterdir() if (m := _NAME.fullmatch(p.name)) and p.is_dir()]
        except OSError:
            return []
        return [p for m, p in sorted(found, key=lambda f: (-int(f[0].group(1)), f[0].group(2) or ""))]


def find(path: Path) -> Path:
    """The checkpoint that `path` means: itself, its state file, or the newest valid one of a folder or run.

    Raises: CheckpointError with the reason of each that was rejected.
    """
    path = Path(path)
    if path.name == STATE and path.is_file():
        path = path.parent
    if (path / STATE).exists() or (path / MARKER).exists() or (path.exists() and _NAME.fullmatch(path.name)):
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    newest, rejected = CheckpointStore(folder, keep=1).newest_valid()
    if newest is not None:
        return newest
    if rejected:
        raise CheckpointError(*(Problem(str(p), why, "start anew, or give another checkpoint") for p, why in rejected))
    raise CheckpointError(_nothing_at(path))


def _nothing_at(path: Path) -> Problem:
    hint = "give a run folder, its checkpoints folder, or one checkpoint"
    if path.is_file():
        return Problem(str(path), "is a file, and no checkpoint of a run", f"{hint}; weights alone: init_from=FILE")
    if path.exists():
        return Problem(str(path), "holds no checkpoint", hint)
    there = [found.name for found in CheckpointStore(path.parent, keep=1).newest_first()]
    hint = f"in {path.parent} there are {', '.join(there)}: older ones are removed (checkpoint.keep)" if there else hint
    return Problem(str(path), "there is no such file or folder", hint)


def load(path: Path, *, mmap: bool = True) -> dict[str, Any]:
    """The state of the checkpoint that `path` means, on the CPU, after its checksum was found right.

    With `mmap`, tensors are read when first used; changes to them stay in memory.
    Raises: CheckpointError for anything that is not a whole checkpoint of this schema.
    """
    folder = find(path)
    try:
        marker = verify(folder)
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True, mmap=mmap)
        if not isinstance(state, dict):
            raise Rejected(f"{STATE} holds a {type(state).__name__}, want a dict")
        state = migrated(state, marker.schema)
    except Rejected as why:
        raise CheckpointError(Problem(str(folder), str(why), "give another checkpoint of the run")) from None
    except _NO_ZIP as error:
        what = f"{STATE} can't be loaded: {first_line(error)}"
        raise CheckpointError(Problem(str(folder), what, "give another checkpoint of the run")) from error
    return state


def _name(update: int) -> str:
    return f"update-{update:06d}"


def _step(path: Path) -> float:
    """The checkpoint's step; infinity where the marker can't tell: it is not worth a place among `keep`."""
    try:
        return read_marker(path).step
    except Rejected:
        return float("inf")
