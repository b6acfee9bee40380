"""Fixtures that several kinds of tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpt.config.schema import DataConfig


@pytest.fixture
def data_config() -> Callable[..., DataConfig]:
    """A function from a data set's name and changed keys to its configuration."""

    def make(name: str, **changes: Any) -> DataConfig:
        defaults: dict[str, Any] = dict(
            batch_size=16, eval_batch_size=None, root=None, download=False, workers=0, on_error="error",
            image_size=None, mean=None, std=None, limit=None, options={},
        )  # fmt: skip
        return DataConfig(name=name, **{**defaults, **changes})

    return make
