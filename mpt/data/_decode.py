"""From an image file of any kind to upright 8-bit pixels with the channels that the model takes."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from mpt.data._boxes import Box, shrunk
from mpt.data._jpeg import fast_jpeg

# What Pillow raises for files that are cut off, empty, or no images.
UNREADABLE = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip

Colour = tuple[int, int, int]
# EXIF's tag of orientation, and its values at which height and width change places.
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)


class Part(NamedTuple):
    """What of an upright image is wanted: a box, and by what (1, 2, 4, 8) a JPEG may be decoded smaller for it."""

    box: Box
    by: int = 1


def whole(height: int, width: int) -> Part:
    """All of an image."""
    return Part(Box(0, 0, height, width))


def decode(path: str, channels: int, background: Colour) -> Tensor:
    """All pixels of the upright image, transparent ones on `background`.

    Shapes: height,width,channels uint8, channels 1 or 3.
    Raises: one of UNREADABLE.
    """
    return decode_and_tell(path, channels, background)[0]


def decode_and_tell(
    path: str, channels: int, background: Colour, choose: Callable[[int, int], Part] = whole
) -> tuple[Tensor, tuple[str, ...]]:
    """Pixels of a part of the upright image, and what had to be changed of it; `choose` is given height and width.

    A JPEG that was decoded smaller gives the part's pixels of the smaller image.
    Shapes: height,width,channels uint8, channels 1 or 3.
    Raises: one of UNREADABLE.
    """
    with _regular(path) as stream:
        data = stream.read()
    with _image(BytesIO(data)) as file:
        sideways = file.getexif().get(ORIENTATION, 1)
        box, by = choose(*((file.width, file.height) if sideways in SIDEWAYS else (file.height, file.width)))
        mode = "L" if channels == 1 else "RGB"
        told = tuple(_changes(file, mode))
        if by > 1 and _draft(file, by):
            box = shrunk(box, by)
        elif sideways == 1 and (found := fast_jpeg(file, data, mode)) is not None:
            return torch.from_numpy(np.ascontiguousarray(found[box.rows, box.columns])), told
        ImageOps.exif_transpose(file, in_place=True)
        image = to_mode(file, mode, background)
    return _pixels(image.crop((box.left, box.top, box.left + box.width, box.top + box.height))), told


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
    with _regular(path) as stream, _image(stream) as file:
        return file.format or ""


def size_of(path: str) -> tuple[int, int]:
    """Height and width as the file's head tells them, before it is turned upright. Raises: one of UNREADABLE."""
    with _regular(path) as stream, _image(stream) as file:
        return file.height, file.width


def _regular(path: str) -> BinaryIO:
    """The file, open. Raises: OSError, also for a pipe or a device, which would be waited for or read without end."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("no regular file")
    return os.fdopen(fd, "rb")


def _image(stream: BinaryIO) -> Image.Image:
    """Raises: one of UNREADABLE, without the address that Pillow tells."""
    try:
        return Image.open(stream)
    except UnidentifiedImageError:
        raise UnidentifiedImageError("cannot identify the format of the image") from None


def format_of_name(path: str) -> str:
    """The format that the file's name promises; empty for an unknown suffix."""
    return Image.registered_extensions().get(os.path.splitext(path)[1].lower(), "")


def _draft(file: Image.Image, by: int) -> bool:
    """Whether the file will be decoded smaller: Pillow does it for JPEGs, and rounds the new size up."""
    before = file.size
    file.draft(None, (file.width // by, file.height // by))
    return file.size != before


def _pixels(image: Image.Image) -> Tensor:
    found = torch.from_numpy(np.array(image))
    return found.unsqueeze(-1) if found.ndim == 2 else found


def to_mode(image: Image.Image, mode: str, background: Colour) -> Image.Image:
    """The image in `mode` (L or RGB), loaded; 16 bits are scaled to 8, alpha is composited.

    Raises: ValueError for values without a known range.
    """
    if image.mode.startswith("I"):
        image = _from_16_bits(image)
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no known range; convert the file to 8 or 16 bits")
    elif image.has_transparency_data:
        behind = Image.new("RGBA", image.size, (*background, 255))
        image = Image.alpha_composite(behind, image.convert("RGBA"))
    if image.mode == mode:
        image.load()
        return image
    return image.convert(mode)


def _from_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError(f"32-bit pixels from {values.min()} to {values.max()} have no known range")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))
