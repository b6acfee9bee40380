"""From an image file of any kind to 8-bit pixels with the channels that the model takes."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

# What Pillow raises for files that are cut off, empty, or no images.
UNREADABLE = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip

Colour = tuple[int, int, int]


ORIENTATION = 0x0112
"""EXIF's tag; 1 is upright."""


def decode(path: str, channels: int, background: Colour) -> Tensor:
    """The upright image, transparent parts on `background`.

    Shapes: H,W,channels uint8, channels 1 or 3.
    Raises: one of UNREADABLE.
    """
    return decode_and_tell(path, channels, background)[0]


def decode_and_tell(path: str, channels: int, background: Colour) -> tuple[Tensor, tuple[str, ...]]:
    """What `decode` gives, and what had to be changed for it. Raises: one of UNREADABLE."""
    wanted = "L" if channels == 1 else "RGB"
    with Image.open(path) as file:
        told = tuple(_changes(file, wanted))
        image = to_mode(ImageOps.exif_transpose(file), wanted, background)
    pixels = torch.from_numpy(np.array(image))
    return (pixels.unsqueeze(-1) if pixels.ndim == 2 else pixels), told


def _changes(file: Image.Image, wanted: str) -> Iterator[str]:
    if file.has_transparency_data:
        yield f"{file.mode} with transparency, laid on data.background"
    elif file.mode != wanted:
        yield f"{file.mode} converted to {wanted}"
    if getattr(file, "n_frames", 1) > 1:
        yield "animated: its first frame"
    if file.getexif().get(ORIENTATION, 1) != 1:
        yield "turned upright as its EXIF says"


def format_of(path: str) -> str:
    """The format that the file's content is of (`PNG`), whatever its name says. Raises: one of UNREADABLE."""
    with Image.open(path) as file:
        return file.format or ""


def format_of_name(path: str) -> str:
    """The format that the file's name promises; empty for an unknown suffix."""
    return Image.registered_extensions().get(os.path.splitext(path)[1].lower(), "")


def to_mode(image: Image.Image, mode: str, background: Colour) -> Image.Image:
    """The image in `mode` (L or RGB); 16 bits are scaled to 8, alpha is composited.

    Raises: ValueError for values without a known range.
    """
    if image.mode.startswith("I"):
        image = _from_16_bits(image)
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no known range; convert the file to 8 or 16 bits")
    elif image.has_transparency_data:
        behind = Image.new("RGBA", image.size, (*background, 255))
        image = Image.alpha_composite(behind, image.convert("RGBA"))
    return image if image.mode == mode else image.convert(mode)


def _from_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError(f"32-bit pixels from {values.min()} to {values.max()} have no known range")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))
