"""Rows of features that users give: samples without pixels, for models that flatten what they are given."""

from __future__ import annotations

import torch

from mpt.config.schema import DataConfig
from mpt.data._context import DataContext
from mpt.data._datasets import Pair
from mpt.data._doubts import empty_classes
from mpt.data._open import batch_sizes
from mpt.data._resident import ResidentSource, Table
from mpt.data._spec import fingerprint, limited, require_kind, require_samples
from mpt.errors import DataError, Problem
from mpt.types import DataSpec, InputSpec


def open_features(
    cfg: DataConfig, wanted: InputSpec, context: DataContext, train: Pair, held: Pair, classes: tuple[str, ...],
    content: str,
) -> ResidentSource:  # fmt: skip
    """A resident source of float32 rows as they are. Shapes: inputs N,F floating; targets N.

    Raises: DataError when the parts have other features, or the model takes pixels.
    """
    features = train[0].shape[1]
    _require_fit(cfg, wanted, features, held[0].shape[1])
    n = limited(cfg, len(train[1]))
    require_samples(cfg, n, len(held[1]), context.world)
    spec = DataSpec(
        name=cfg.name, kind="images", shape=(features,), num_classes=len(classes), n_train=n, n_eval=len(held[1]),
        classes=classes, fingerprint=fingerprint(content, n),
    )  # fmt: skip
    tables = [
        Table(x.to(context.device, torch.float32), y.to(context.device, torch.int64))
        for x, y in ((train[0][:n], train[1][:n]), held)
    ]
    source = ResidentSource(spec, tables[0], tables[1], batch_sizes(cfg), context)
    source.notes += empty_classes(train[1], classes)
    return source


def _require_fit(cfg: DataConfig, wanted: InputSpec, features: int, held: int) -> None:
    require_kind(cfg, wanted, "images")
    if features != held:
        what = f"training has {features} features, evaluation {held}"
        raise DataError(Problem("data.path", what, "give both parts the same"))
    if wanted.channels is not None or wanted.size is not None or wanted.min_size > 1:
        what = f"`{cfg.name}` gives rows of {features} features, but the model takes images"
        raise DataError(Problem("model, data", what, "use model=mlp or model=custom, or reshape the rows to C,H,W"))
    given = {"data.image_size": cfg.image_size, "data.mean": cfg.mean, "data.std": cfg.std}
    idle = [Problem(k, f"got {v}, without effect on features", "leave it away") for k, v in given.items() if v]
    if idle:
        raise DataError(*idle)
