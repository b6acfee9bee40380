"""Options of a model, checked against the names it knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpt.errors import ModelError, Problem
from mpt.types import DataKind, DataSpec

_FITTING = {"images": "data=digits", "tokens": "data=shakespeare"}
_FITTING_MODEL = {"images": "model=small_cnn", "tokens": "model=gpt"}


def require_kind(name: str, data: DataSpec, kind: DataKind) -> None:
    """Raises: ModelError when the model `name` does not take what the data set gives."""
    if data.kind != kind:
        what = f"`{name}` takes {kind}, but data=`{data.name}` gives {data.kind}"
        raise ModelError(Problem("model, data", what, f"try `{_FITTING_MODEL[data.kind]}` or `{_FITTING[kind]}`"))


def require_positive(options: Mapping[str, Any], *keys: str) -> None:
    """Raises: ModelError naming each of `keys` that is less than 1."""
    bad = [Problem(f"model.{key}", f"got {options[key]}", "give a whole number, at least 1")
           for key in keys if options[key] < 1]  # fmt: skip
    if bad:
        raise ModelError(*bad)


def require_fraction(options: Mapping[str, Any], key: str) -> None:
    """Raises: ModelError when the option is not in [0, 1)."""
    if not 0 <= options[key] < 1:
        raise ModelError(Problem(f"model.{key}", f"got {options[key]}", "give a number from 0 up to, not including, 1"))
