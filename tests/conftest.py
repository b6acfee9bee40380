"""Fixtures that several kinds of tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from mpt.config.schema import DataConfig

# Before torch is imported: with more threads than a tiny net needs, they spin and slow one another down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test is about time: a busy machine must not fail one.
settings.register_profile("mpt", deadline=None)
settings.load_profile("mpt")


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
