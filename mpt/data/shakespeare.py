"""Eight plays as bytes, inside the package (public domain); the last tenth is for evaluation."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.data._idle import image_keys
from mpt.errors import Problem
from mpt.types import DataKind, InputSpec

if TYPE_CHECKING:
    from mpt.data._open import RawTokens

KIND: DataKind = "tokens"
READS = ()
FILE = "shakespeare.txt.gz"
# What the best add-a bigram model reaches on the evaluation part; tests compute it.
BIGRAM_NATS = 2.5641


def check(cfg: DataConfig) -> list[Problem]:
    """Nothing can be missing: the file is part of the package."""
    return image_keys(cfg)


def open_data(cfg: DataConfig, wanted: InputSpec, context: DataContext) -> DataSource:
    """Windows of the model's context on the device; each byte of a part is a target once."""
    from mpt.data._open import open_tokens

    return open_tokens(cfg, wanted, context, read())


def read() -> RawTokens:
    """The bytes of both parts."""
    from mpt.data._spec import packaged
    from mpt.data._text import parts_of

    packed = packaged(FILE)
    return parts_of(gzip.decompress(packed), packed)
