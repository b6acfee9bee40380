"""Data sets in torchvision's layout: found in data.root, or downloaded when that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import URLError

from mpt.config.schema import DataConfig
from mpt.errors import DataError, Problem


def missing_files(cfg: DataConfig, wanted: Sequence[tuple[Path, ...]]) -> list[Problem]:
    """A shift that is none, and where files are expected: of each of `wanted` one of its spellings."""
    shift = cfg.options.get("shift", 0)
    if shift < 0:
        return [Problem("data.shift", f"got {shift}, want a number of pixels ≥ 0", "0 leaves images where they are")]
    if cfg.root is None:
        return [Problem("data.root", "is not set", "give the folder that holds, or shall receive, the files")]
    root = Path(cfg.root).expanduser()
    absent = [choices[0] for choices in wanted if not any((root / c).is_file() for c in choices)]
    if not absent or cfg.download:
        return []
    more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
    what = f"`{cfg.name}` is not there: no {(root / absent[0]).absolute()}{more}"
    return [Problem("data.root", what, "fetch it with data.download=true, or put the files there")]


def require_files(cfg: DataConfig, check: Callable[[DataConfig], list[Problem]], dataset: str) -> Path:
    """The root, with all files in it; torchvision's class `dataset` downloads what is missing if data.download.

    Raises: DataError when files are missing, or can't be had.
    """
    assert cfg.root is not None, "check() refuses a configuration without data.root"
    root = Path(cfg.root).expanduser()
    if cfg.download:
        _download(root, dataset)
    problems = check(cfg)
    if problems:
        raise DataError(*problems)
    return root


def _download(root: Path, dataset: str) -> None:
    from torchvision import datasets

    make: dict[str, Callable[..., object]] = {"CIFAR10": datasets.CIFAR10, "FashionMNIST": datasets.FashionMNIST}
    try:
        make[dataset](root, download=True)
    except (URLError, RuntimeError, OSError) as error:
        hint = "check the connection, or put the files there by hand and leave data.download out"
        raise DataError(Problem("data.download", f"{dataset} can't be fetched into {root}: {error}", hint)) from error
