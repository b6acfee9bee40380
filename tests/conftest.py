"""Fixtures that several kinds of tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from mpt.config.schema import DataConfig

# Before torch is imported: with more threads than a tiny net needs, they spin and slow one another down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test is about time: a busy machine must not fail one.
settings.register_profile("mpt", deadline=None)
settings.load_profile("mpt")


@pytest.fixture(autouse=True)
def forgets_its_code(request: pytest.FixtureRequest) -> Iterator[None]:
    """Python files of a test's own folder are not what another test imports by the same name."""
    yield
    folder: Path | None = request.node.funcargs.get("tmp_path")
    if folder is not None:
        files = [(name, getattr(module, "__file__", None) or "") for name, module in list(sys.modules.items())]
        for name in [name for name, file in files if file.startswith(f"{folder}{os.sep}")]:
            del sys.modules[name]
        sys.path[:] = [path for path in sys.path if not path.startswith(str(folder))]


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
