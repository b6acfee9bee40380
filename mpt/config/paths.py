"""Where the YAML lies: inside an installed wheel, or at the top of a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The folder of config.yaml and the groups."""
    return _shipped("conf")


def recipes_dir() -> Path:
    """The folder of whole runs, by family."""
    return _shipped("recipes")


def _shipped(name: str) -> Path:
    # The wheel's copy first: a folder named `conf` beside site-packages/mpt would be somebody else's.
    inside = _PACKAGE / "_data" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
