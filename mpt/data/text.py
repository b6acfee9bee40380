"""The user's own text file, read as `shakespeare` is: bytes are tokens, the last tenth is for evaluation."""

from __future__ import annotations

from pathlib import Path

from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.data._idle import image_keys
from mpt.errors import DataError, Problem
from mpt.types import DataKind, InputSpec

KIND: DataKind = "tokens"
READS = ("root",)
KEY = "data.root"


def check(cfg: DataConfig) -> list[Problem]:
    """Whether there is a file with something in it; that a window fits is asked once the model's context is known."""
    return [*_file_problems(cfg), *image_keys(cfg)]


def _file_problems(cfg: DataConfig) -> list[Problem]:
    if cfg.root is None:
        return [Problem(KEY, "is not set", "give your text file: data.root=mytext.txt")]
    file = Path(cfg.root).expanduser()
    if file.is_dir():
        return [Problem(KEY, f"`{cfg.root}` is a folder", "give one text file; of several: cat *.txt > all.txt")]
    if not file.exists():
        return [Problem(KEY, f"no file {file.absolute()}", "paths are relative to the current folder")]
    if file.is_file() and not file.stat().st_size:
        return [Problem(KEY, f"`{cfg.root}` is empty", "give a file with text")]
    return []


def open_data(cfg: DataConfig, wanted: InputSpec, context: DataContext) -> DataSource:
    """Windows of the model's context on the device; each byte of a part is a target once.

    Raises: DataError when the file can't be read, or is too short for a window in each part.
    """
    from mpt.data._open import open_tokens
    from mpt.data._text import parts_of

    assert cfg.root is not None, "check() refuses a configuration without data.root"
    try:
        text = Path(cfg.root).expanduser().read_bytes()
    except OSError as error:
        what = f"`{cfg.root}` can't be read: {error.strerror or error}"
        raise DataError(Problem(KEY, what, "give a text file that this user may read")) from error
    return open_tokens(cfg, wanted, context, parts_of(text, text))
