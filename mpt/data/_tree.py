"""Folders of images by class: which files there are, held as arrays; no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpt.errors import DataError, Problem

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Names that people give to the evaluation part, the first that is there is taken.
EVAL_NAMES = ("val", "valid", "validation", "test")


@dataclass(frozen=True)
class Tree:
    """Files below `root` and their classes.

    `names` holds all paths end to end, file i between `ends[i]` and `ends[i + 1]`: one object however many files
    there are, because worker processes that touch a list of a million would each copy it.
    """

    root: str
    names: bytes
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """The file's path; any name that the file system allows."""
        return os.path.join(self.root, os.fsdecode(self.names[self.ends[index] : self.ends[index + 1]]))

    def take(self, indices: NDArray[np.int64]) -> Tree:
        """The same tree with these files only, in this order."""
        parts = [self.names[self.ends[i] : self.ends[i + 1]] for i in indices.tolist()]
        return Tree(self.root, b"".join(parts), _ends(parts), self.labels[indices], self.sizes[indices])

    def content(self) -> tuple[bytes, bytes, bytes]:
        """What identifies the files without reading them: names, classes, sizes."""
        return self.names, self.labels.tobytes(), self.sizes.tobytes()


def class_names(folder: Path) -> tuple[str, ...]:
    """Folders in `folder` in lexicographic order, hidden ones left out; the order numbers the classes.

    Raises: DataError where it can't be listed.
    """
    with _listed(str(folder)) as entries:
        return tuple(sorted(e.name for e in entries if not e.name.startswith(".") and _is(e.is_dir)))


@contextmanager
def _listed(folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    """What is in the folder. Raises: DataError where it is gone or may not be read."""
    try:
        with os.scandir(folder) as entries:
            yield entries
    except OSError as error:
        what = f"can't be listed: {error.strerror or error}"
        hint = "make it readable, and let nothing change it"
        raise DataError(Problem(error.filename or folder, what, hint)) from error


def _is(ask: Callable[[], bool]) -> bool:
    """False for a link that leads to itself."""
    try:
        return ask()
    except OSError:
        return False


def parts(root: Path) -> tuple[Path, Path | None]:
    """The training folder and the evaluation folder of `root`; (root, None) where one folder holds both."""
    if not (root / "train").is_dir():
        return root, None
    found = next((root / name for name in EVAL_NAMES if (root / name).is_dir()), None)
    return root / "train", found


def scan(folder: Path, classes: tuple[str, ...]) -> Tree:
    """All images below the class folders, sorted by path within a class; hidden files and folders are left out."""
    names: list[bytes] = []
    labels: list[int] = []
    sizes: list[int] = []
    for label, name in enumerate(classes):
        for file, size in sorted(_images(folder / name)) if (folder / name).is_dir() else ():
            names.append(os.fsencode(os.path.relpath(file, folder)))
            labels.append(label)
            sizes.append(size)
    return Tree(str(folder), b"".join(names), _ends(names), np.array(labels, np.int64), np.array(sizes, np.int64))


def _images(folder: Path) -> Iterator[tuple[str, int]]:
    """Path and size of each image; links to folders inside a class are not followed, so that no loop is endless."""
    pending = [str(folder)]
    while pending:
        with _listed(pending.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.name.lower().endswith(SUFFIXES) and not _is(entry.is_dir):
                    yield entry.path, _size(entry)


def _size(entry: os.DirEntry[str]) -> int:
    """Bytes; 0 for a link to nowhere or to itself, and for a file that has just gone: reading it will say so."""
    try:
        return entry.stat().st_size
    except OSError:
        return 0


def _ends(parts: list[bytes]) -> NDArray[np.int64]:
    return np.cumsum([0, *map(len, parts)], dtype=np.int64)


def require_known(folder: Path, classes: tuple[str, ...]) -> None:
    """Raises: DataError when the evaluation folder has a class that the training folder has not."""
    extra = [name for name in class_names(folder) if name not in classes]
    if extra:
        what = f"has classes that training has not: {', '.join(extra[:5])}"
        raise DataError(Problem(str(folder), what, "add them to the training folder, or take them out"))


def notes(folder: Path, classes: tuple[str, ...], tree: Tree) -> list[str]:
    """What is odd about the classes but can be trained on."""
    counts = np.bincount(tree.labels, minlength=len(classes))
    empty = [name for name, count in zip(classes, counts, strict=True) if count == 0]
    found = []
    if empty:
        found.append(f"{folder}: no images in {', '.join(empty)}; the classes keep their numbers")
    if all(name.isdigit() for name in classes) and list(classes) != sorted(classes, key=int):
        found.append(f"{folder}: classes are numbered in the order of their text: {', '.join(classes[:4])}, …")
    with _listed(str(folder)) as entries:
        hidden = sorted(e.name for e in entries if e.name.startswith(".") and e.is_dir())
    if hidden:
        found.append(f"{folder}: hidden folders are no classes and are left out: {', '.join(hidden[:4])}")
    return found
