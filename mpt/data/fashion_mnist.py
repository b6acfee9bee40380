"""Fashion-MNIST: 60,000 + 10,000 grey images of 28×28 (MIT licence), from torchvision's layout under data.root."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.errors import DataError, Problem
from mpt.types import DataKind, InputSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KIND: DataKind = "images"
READS = ("root", "download")
FOLDER = Path("FashionMNIST") / "raw"
FILES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
# Of the training part, after scaling to 0–1.
MEAN, STD = 0.2860, 0.3530
# The element type in an idx file's header that means unsigned bytes.
IDX_UBYTE = 8


def check(cfg: DataConfig) -> list[Problem]:
    """A problem that names the files that are missing, unless they are to be downloaded."""
    from mpt.data._torchvision import missing_files

    return missing_files(cfg, [(FOLDER / name, FOLDER / f"{name}.gz") for name in FILES])


def open_data(cfg: DataConfig, wanted: InputSpec, context: DataContext) -> DataSource:
    """All images on the device.

    Raises: DataError when a file is missing, cut off or another one.
    """
    from mpt.data._open import RawImages, open_images
    from mpt.data._spec import content_of
    from mpt.data._torchvision import require_files

    root = require_files(cfg, check, "FashionMNIST")
    arrays = [_read_idx(root / FOLDER / name) for name in FILES]
    parts = [(images[..., None], labels) for images, labels in (arrays[:2], arrays[2:])]
    raw = RawImages(parts[0], parts[1], 255.0, (MEAN,), (STD,), CLASSES, content_of(*arrays))
    return open_images(cfg, wanted, context, raw)


def _read_idx(file: Path) -> NDArray[np.uint8]:
    """The array in an idx file of bytes, gzipped or not."""
    import numpy as np

    packed = file.with_name(file.name + ".gz")
    try:
        content: Any = file.read_bytes() if file.is_file() else gzip.decompress(packed.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(Problem(str(packed), f"can't be unpacked: {error}", "fetch it again")) from error
    axes = content[3] if len(content) > 3 else 0
    start = 4 + 4 * axes
    shape = tuple(np.frombuffer(content, ">u4", axes, offset=4)) if len(content) >= start else ()
    if content[:3] != bytes((0, 0, IDX_UBYTE)) or len(content) != start + int(np.prod(shape, dtype=np.int64)):
        what = f"is no complete idx file of bytes ({len(content)} bytes)"
        raise DataError(Problem(str(file), what, "fetch it again"))
    return np.frombuffer(content, np.uint8, offset=start).reshape([int(n) for n in shape])
