"""What is wrong with the keys of one data set: what it finds itself, and places that it never looks at; no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpt import registry
from mpt.config.schema import DataConfig
from mpt.errors import Problem

PLACES = ("root", "download")
"""Keys that only some data sets read: each names its own in READS."""


def data_problems(cfg: DataConfig) -> list[Problem]:
    """Everything. A file of the user's that is not read is one: something else would be trained on.

    Raises: ConfigError when there is no such data set.
    """
    entry = registry.load("data", cfg.name)
    files = {key: value for key, value in _unread(entry, cfg).items() if Path(str(value)).expanduser().is_file()}
    mistaken = [
        Problem(f"data.{key}", f"got `{value}`, without effect: data={cfg.name} does not read it", _instead(cfg, key))
        for key, value in files.items()
    ]
    return [*mistaken, *entry.check(cfg)]


def idle_places(cfg: DataConfig) -> list[str]:
    """A sentence for each place that the data set never looks at."""
    unread = _unread(registry.load("data", cfg.name), cfg)
    return [
        f"without effect: data.{key}={value}; data={cfg.name} does not read it: {_instead(cfg, key)}"
        for key, value in unread.items()
    ]


def _unread(entry: Any, cfg: DataConfig) -> dict[str, str]:
    """What is given of PLACES and not read; a plugin's data set that declares nothing may read both."""
    given = {"root": cfg.root, "download": "true" if cfg.download else None}
    reads = getattr(entry, "READS", PLACES)
    return {key: value for key, value in given.items() if value is not None and key not in reads}


def _instead(cfg: DataConfig, key: str) -> str:
    """Which data set would read what was given."""
    if key == "download":
        return "leave it away, only data=cifar10 and data=fashion_mnist are fetched"
    own = ("text", "text") if Path(str(cfg.root)).expanduser().is_file() else ("images", "image_folder")
    return f"leave it away; your own {own[0]}: data={own[1]} data.root={cfg.root}"
