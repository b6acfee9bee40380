"""What is wrong, and what is only seldom meant, in arrays that users give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mpt.errors import DataError, Problem

_CHANNELS = (1, 3, 4)
"""Grey, colour, and colour with transparency."""
_SHOWN = 5


def require_numbers(part: str, inputs: Tensor, targets: Tensor) -> None:
    """Raises: DataError for inputs and targets whose formats can't be what they stand for."""
    if inputs.is_complex():
        raise _refused(f"`{part}` has inputs of {_format(inputs)}", "give real numbers, as torch.view_as_real does")
    if targets.ndim == 2 and inputs.ndim == 4:
        what = f"`{part}` has targets of shape {tuple(targets.shape)}, want one class number for each image"
        raise _refused(what, "of one-hot targets: targets.argmax(1)")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        what = f"`{part}` has targets of {_format(targets)}, want whole numbers: classes, or token ids"
        raise _refused(what, "where they are such numbers: targets.long()")


def doubts(inputs: Tensor, targets: Tensor, classes: Sequence[str]) -> Iterator[str]:
    """Sentences on images that are taken as they are, and yet are seldom meant so. Shapes: B,C,H,W and B."""
    _, channels, _, last = inputs.shape
    if last in _CHANNELS and channels not in _CHANNELS:
        shape = "×".join(map(str, inputs.shape[1:]))
        yield f"images are {shape}, read as channels × height × width; where channels are last: permute(0, 3, 1, 2)"
    if not inputs.is_floating_point() and inputs.dtype not in (torch.uint8, torch.bool):
        low, high = (int(x) for x in inputs.to(torch.int64).aminmax())
        told = f"images of {_format(inputs)} from {low:,} to {high:,}"
        yield f"{told} are taken as they are: only bytes are scaled to 0–1"
    yield from empty_classes(targets, classes)


def empty_classes(targets: Tensor, classes: Sequence[str]) -> Iterator[str]:
    """A sentence that names the classes without a training sample, if there are any."""
    seen = torch.bincount(targets.long(), minlength=len(classes))
    empty = [classes[i] for i in (seen == 0).nonzero().flatten().tolist()]
    if empty:
        more = f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else ""
        yield f"classes without training samples: {', '.join(empty[:_SHOWN])}{more}"


def _refused(what: str, hint: str) -> DataError:
    return DataError(Problem("data.path", what, hint))


def _format(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
