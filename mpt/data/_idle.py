"""Keys of other kinds of data that were given to this one; no torch."""

from __future__ import annotations

from mpt.config.schema import DataConfig
from mpt.errors import Problem


def image_keys(cfg: DataConfig) -> list[Problem]:
    """A problem for each key of images that a set of tokens was given."""
    given = {"data.image_size": cfg.image_size, "data.mean": cfg.mean, "data.std": cfg.std}
    what = f"which data={cfg.name} has no use for: its samples are tokens"
    return [Problem(k, f"got {v}, {what}", "leave it away") for k, v in given.items() if v is not None]
