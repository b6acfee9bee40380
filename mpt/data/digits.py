"""1,797 handwritten digits of 8×8 pixels, inside the package (UCI, CC BY 4.0)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.errors import Problem
from mpt.types import DataKind, InputSpec

if TYPE_CHECKING:
    from mpt.data._open import RawImages

KIND: DataKind = "images"
READS = ()
FILE = "digits.csv.gz"
# The split is the data set's own, not the run's: runs of all seeds share one test set.
SPLIT_SEED = 0
EVAL_FRAC = 0.2
# Of the training part, after scaling to 0–1; tests compute them.
MEAN, STD = 0.30443, 0.37545


def check(cfg: DataConfig) -> list[Problem]:
    """Nothing can be missing: the file is part of the package."""
    return []


def open_data(cfg: DataConfig, wanted: InputSpec, context: DataContext) -> DataSource:
    """Digits on the device, 1,438 for training and 359 for evaluation, each class split alike."""
    from mpt.data._open import open_images

    return open_images(cfg, wanted, context, read())


def read() -> RawImages:
    """The images in their split, shuffled by SPLIT_SEED, so that the first n hold every class."""
    import gzip

    import numpy as np

    from mpt.data._open import RawImages
    from mpt.data._order import stratified_split
    from mpt.data._spec import packaged

    packed = packaged(FILE)
    table = np.loadtxt(io.BytesIO(gzip.decompress(packed)), delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1]
    train, evaluation = stratified_split(labels, EVAL_FRAC, SPLIT_SEED)
    return RawImages(
        train=(images[train], labels[train]),
        evaluation=(images[evaluation], labels[evaluation]),
        scale=16.0,
        mean=(MEAN,),
        std=(STD,),
        classes=tuple(str(d) for d in range(10)),
        content=(packed, EVAL_FRAC, SPLIT_SEED),
    )
