"""The user's own callable, which returns arrays, tensors or torch data sets.

It returns `{"train": (inputs, targets), "eval": (inputs, targets)}`: images B,C,H,W (float as they shall be, or bytes
that are scaled to 0–1) or floating features B,F with one class number each, or token ids B,L with targets B,L. Or, for
what does not fit into memory, `{"train": dataset, "eval": dataset, "classes": 10}` of torch data sets that give one
pair for each index (images or tokens). `classes` (names, or how many) is optional beside arrays.
"""

from __future__ import annotations

from typing import Any

from mpt.config.options import merged
from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.errors import Problem
from mpt.types import InputSpec

# The callable may ask for the configuration of the data.
READS = ("root", "download")
DEFAULTS: dict[str, Any] = {"path": None, "kwargs": {}}
KEY = "data.path"


def check(cfg: DataConfig) -> list[Problem]:
    """Whether a callable is named; it is imported only when the data are opened."""
    path = cfg.options.get("path")
    if not path or ":" not in str(path):
        return [Problem(KEY, f"got `{path}`", "give `pkg.module:callable` or `file.py:callable`")]
    return []


def open_data(cfg: DataConfig, wanted: InputSpec, context: DataContext) -> DataSource:
    """Arrays live on the device; data sets are read by workers.

    Raises: ConfigError when the callable is not there or fails; DataError when what it returns does not fit.
    """
    from mpt.data._given import given_arrays, given_datasets, open_arrays, open_datasets
    from mpt.usercode import call, load_callable

    options = merged("data", cfg.options, DEFAULTS)
    path = str(options["path"])
    result = call(load_callable(path, KEY), path, KEY, options["kwargs"], data=cfg)
    datasets = given_datasets(result, path)
    if datasets is not None:
        return open_datasets(cfg, wanted, context, datasets)
    return open_arrays(cfg, wanted, context, given_arrays(result, path))
