"""CIFAR-10: 50,000 + 10,000 colour images of 32×32, from torchvision's layout under data.root."""

from __future__ import annotations

from pathlib import Path

from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.errors import DataError, Problem
from mpt.types import DataKind, InputSpec

KIND: DataKind = "images"
READS = ("root", "download")
FOLDER = Path("cifar-10-batches-py")
FILES = ("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
# Of the training part, after scaling to 0–1.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def check(cfg: DataConfig) -> list[Problem]:
    """A problem that names the files that are missing, unless they are to be downloaded."""
    from mpt.data._torchvision import missing_files

    return missing_files(cfg, [(FOLDER / name,) for name in FILES])


def open_data(cfg: DataConfig, wanted: InputSpec, context: DataContext) -> DataSource:
    """All images on the device; torchvision checks the files' sums before it unpacks them.

    Raises: DataError when files are missing or are not CIFAR-10's.
    """
    import numpy as np
    from torchvision.datasets import CIFAR10

    from mpt.data._open import RawImages, open_images
    from mpt.data._spec import content_of
    from mpt.data._torchvision import require_files

    root = require_files(cfg, check, "CIFAR10")
    try:
        train, evaluation = (CIFAR10(root, train=part) for part in (True, False))
    except RuntimeError as error:
        raise DataError(Problem(str(root / FOLDER), str(error), "fetch the files again: data.download=true")) from error
    parts = [(np.asarray(d.data), np.asarray(d.targets, np.uint8)) for d in (train, evaluation)]
    content = content_of(*parts[0], *parts[1])
    raw = RawImages(parts[0], parts[1], 255.0, MEAN, STD, tuple(train.classes), content)
    return open_images(cfg, wanted, context, raw)
