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
    """Everything. Raises: ConfigError when there is no such data set."""
    entry = registry.load("data", cfg.name)
    return [*_unread_places(entry, cfg), *entry.check(cfg)]


def _unread_places(entry: Any, cfg: DataConfig) -> list[Problem]:
    """A problem for each place that is not read; a plugin's data set that declares nothing may read both."""
    given = {"root": cfg.root, "download": cfg.download or None}
    reads = getattr(entry, "READS", PLACES)
    unread = {key: value for key, value in given.items() if value is not None and key not in reads}
    return [Problem(f"data.{key}", _without_effect(cfg, value), _instead(cfg, key)) for key, value in unread.items()]


def _without_effect(cfg: DataConfig, value: object) -> str:
    told = "true" if value is True else f"`{value}`"
    return f"got {told}, without effect: data={cfg.name} does not read it"


def _instead(cfg: DataConfig, key: str) -> str:
    """Which data set would read what was given."""
    if key == "download":
        return "leave it away: only data=cifar10 and data=fashion_mnist are fetched"
    own = ("images", "image_folder") if Path(str(cfg.root)).expanduser().is_dir() else ("text", "text")
    return f"leave it away; your own {own[0]}: data={own[1]} data.root={cfg.root}"
