"""Weights for other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from mpt.errors import CheckpointError, Problem


def to_safetensors(weights: Mapping[str, Tensor], out: Path, about: Mapping[str, str]) -> None:
    """`out` holds the tensors, whole or not at all; tied ones are written under each of their names.

    Raises: CheckpointError without the library, or where the file can't be written or is there already.
    """
    if find_spec("safetensors") is None:
        raise CheckpointError(
            Problem("mpt checkpoint export", "safetensors is not installed", "pip install safetensors")
        )
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if os.path.lexists(out):
        raise CheckpointError(Problem(str(out), "is there already", "name a new file"))
    if not out.parent.is_dir():
        raise CheckpointError(Problem(str(out), f"there is no folder {out.parent}", "make it, or name another place"))
    temp = out.with_name(f".{out.name}.tmp")
    plain = {name: torch.empty_like(t, memory_format=torch.contiguous_format).copy_(t) for name, t in weights.items()}
    try:
        save_file(plain, temp, {"format": "pt", **about})
        temp.replace(out)
    except (OSError, SafetensorError) as error:  # its own error for a disk that is full
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(Problem(str(out), f"can't be written: {why}", "name another place")) from error
    finally:
        with suppress(OSError):  # a name that is too long is no name
            temp.unlink(missing_ok=True)
