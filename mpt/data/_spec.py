"""Fingerprints, and refusals that every data set shares; no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mpt.config.schema import DataConfig
from mpt.errors import DataError, Problem
from mpt.types import DataKind, InputSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What would fit, by the kind of the data; shown when a model and its data do not fit.
_FITTING = {"images": "model=small_cnn data=digits", "tokens": "model=gpt data=shakespeare"}
_TAKES: dict[DataKind, str] = {"images": "images", "tokens": "token ids"}


def packaged(name: str) -> bytes:
    """The content of a file that lies in the package."""
    return (files("mpt.data") / "files" / name).read_bytes()


def fingerprint(*parts: object) -> str:
    """sha256 over content, split and transforms; bytes go in as they are, all else by its repr."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes | memoryview) else repr(part).encode()
        digest.update(memoryview(raw).nbytes.to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


def content_of(*arrays: NDArray[Any]) -> str:
    """A fingerprint of arrays' types, shapes and bytes; nothing is copied where they lie in one piece."""
    import numpy as np

    parts = [(a.dtype.str, a.shape, np.ascontiguousarray(a).data.cast("B")) for a in arrays]
    return fingerprint(*(part for array in parts for part in array))


def require_kind(cfg: DataConfig, wanted: InputSpec, given: DataKind) -> None:
    """Raises: DataError when the model takes another kind of input than this data set gives."""
    if wanted.kind in (None, given):
        return
    what = f"`{cfg.name}` gives {_TAKES[given]}, but the model takes {_TAKES[wanted.kind]}"
    hint = f"change model (`{_FITTING[given]}`) or data (`{_FITTING[wanted.kind]}`)"
    raise DataError(Problem("model, data", what, hint))


def require_samples(cfg: DataConfig, n_train: int, n_eval: int, world: int) -> None:
    """Raises: DataError when a rank would have nothing to train on, or nothing is left to evaluate."""
    if n_train < world:
        where = "data.limit" if cfg.limit is not None else f"data={cfg.name}"
        raise DataError(Problem(where, f"{n_train} training samples for {world} ranks", "each rank needs at least one"))
    if n_eval < 1:
        raise DataError(Problem(f"data={cfg.name}", "no evaluation samples", "give the set a larger evaluation part"))


def limited(cfg: DataConfig, n: int) -> int:
    """How many of n training samples are used."""
    return n if cfg.limit is None else min(n, cfg.limit)


def positive_options(cfg: DataConfig, keys: Mapping[str, Any]) -> list[Problem]:
    """A problem for each option of `keys` that is given and no whole number of at least 1."""
    given = {key: cfg.options[key] for key in keys if cfg.options.get(key) is not None}
    return [
        Problem(f"data.{key}", f"got {value}", "give a whole number, at least 1")
        for key, value in given.items()
        if not isinstance(value, int) or value < 1
    ]
