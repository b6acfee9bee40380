"""From arrays in memory to a source on the device: what every small data set has in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpt.config.schema import DataConfig
from mpt.data._augment import Augment
from mpt.data._context import DataContext
from mpt.data._images import ImagePlan, Normalise, plan_images, resized
from mpt.data._resident import Finish, ResidentSource, Table, Windows, as_stored, channels_last
from mpt.data._spec import fingerprint, limited, require_kind, require_samples
from mpt.errors import DataError, Problem
from mpt.types import DataSpec, InputSpec

# A set that would be larger than this after resizing is kept at its own size and resized batch by batch.
RESIZED_BYTES = 1 << 30
# Images converted at a time while a set is uploaded; bounds the memory above the set itself.
CHUNK = 2048
# Window length where neither the model nor the data set names one.
DEFAULT_CONTEXT = 64


@dataclass(frozen=True)
class RawImages:
    """Images as they lie in their files.

    Shapes: images N,H,W,C with values 0 … scale; labels N of 0 … classes-1. `content` identifies the files.
    """

    train: tuple[NDArray[Any], NDArray[Any]]
    evaluation: tuple[NDArray[Any], NDArray[Any]]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    content: object


@dataclass(frozen=True)
class RawTokens:
    """Token ids of both parts. Shapes: 1-D, or N,L+1 where windows are cut already."""

    train: NDArray[Any]
    evaluation: NDArray[Any]
    vocabulary: int
    content: object


def eval_count(n: int, frac: float) -> int:
    """How many evaluation samples accompany n made-up training samples; ≥ 1."""
    return max(1, round(n * frac))


def layout(context: DataContext, shape: tuple[int, int, int]) -> tuple[tuple[int, int, int], Finish]:
    """The shape in which an image is stored, and what makes B,C,H,W of gathered rows without a copy."""
    channels, height, width = shape
    return ((height, width, channels), channels_last) if context.channels_last else (shape, as_stored)


def batch_sizes(cfg: DataConfig) -> tuple[int, int]:
    """Samples in a training micro-batch and in an evaluation batch."""
    return cfg.batch_size, cfg.eval_batch_size or 4 * cfg.batch_size


def open_images(cfg: DataConfig, wanted: InputSpec, context: DataContext, raw: RawImages) -> ResidentSource:
    """A resident source of normalised float32 images.

    Raises: DataError when data and model do not fit.
    """
    require_kind(cfg, wanted, "images")
    images, labels = raw.train
    n = limited(cfg, len(labels))
    require_samples(cfg, n, len(raw.evaluation[1]), context.world)
    height, width, channels = images.shape[1:]
    plan = plan_images(cfg, wanted, (channels, height, width), raw.mean, raw.std)
    spec = DataSpec(
        name=cfg.name, kind="images", shape=plan.shape, num_classes=len(raw.classes), n_train=n,
        n_eval=len(raw.evaluation[1]), classes=raw.classes,
        fingerprint=fingerprint(raw.content, n, plan, raw.scale),
    )  # fmt: skip
    late = _bytes(spec) > RESIZED_BYTES and plan.shape[1:] != (height, width)
    upload = partial(_image_table, raw=raw, plan=plan, context=context, resize=not late)
    finish = _finish(context, plan, resize=late)
    train, evaluation = upload(images[:n], labels[:n]), upload(*raw.evaluation)
    augment = Augment(int(cfg.options.get("shift", 0)), bool(cfg.options.get("flip", False)))
    return ResidentSource(spec, train, evaluation, batch_sizes(cfg), context, finish, augment)


def _bytes(spec: DataSpec) -> int:
    return (spec.n_train + spec.n_eval) * int(np.prod(spec.shape)) * 4


def _finish(context: DataContext, plan: ImagePlan, *, resize: bool) -> Finish:
    _, arrange = layout(context, plan.shape)
    if not resize:
        return arrange

    def arranged_and_resized(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = arrange(inputs, targets)
        return resized(inputs, plan), targets

    return arranged_and_resized


def _image_table(
    images: NDArray[Any], labels: NDArray[Any], *, raw: RawImages, plan: ImagePlan, context: DataContext, resize: bool
) -> Table:
    """Uploads in chunks, so that the set is never there twice."""
    size = plan.shape[1:] if resize else images.shape[1:3]
    stored, arrange = layout(context, (plan.shape[0], *size))
    out = torch.empty((len(labels), *stored), device=context.device)
    into, _ = arrange(out, out)
    normalise = Normalise(plan, raw.scale, context.device)
    for start in range(0, len(labels), CHUNK):
        chunk = torch.from_numpy(np.array(images[start : start + CHUNK], order="C")).to(context.device)
        x = normalise(chunk)
        into[start : start + CHUNK] = resized(x, plan) if resize else x
    return Table(out, torch.from_numpy(labels.astype(np.int64)).to(context.device))


def open_tokens(cfg: DataConfig, wanted: InputSpec, context: DataContext, raw: RawTokens) -> ResidentSource:
    """A resident source of token windows of the model's context, which do not overlap but in their borders.

    Raises: DataError when data and model do not fit.
    """
    require_kind(cfg, wanted, "tokens")
    length = wanted.context or DEFAULT_CONTEXT
    train, evaluation = (_windows(part, length) for part in (raw.train, raw.evaluation))
    if not len(train) or not len(evaluation):
        what = f"no window of {length:,} tokens and the one after fits: {len(raw.train):,} for training"
        told = f"{what}, {len(raw.evaluation):,} for evaluation"
        raise DataError(Problem("model.context, data", told, "make model.context shorter, or give more text"))
    train = train[: limited(cfg, len(train))]
    require_samples(cfg, len(train), len(evaluation), context.world)
    length = train.shape[1] - 1
    spec = DataSpec(
        name=cfg.name, kind="tokens", shape=(length,), num_classes=raw.vocabulary, n_train=len(train),
        n_eval=len(evaluation), classes=(), fingerprint=fingerprint(raw.content, len(train), length),
    )  # fmt: skip
    narrow = (_narrow(part, raw.vocabulary) for part in (train, evaluation))
    tables = [Windows(torch.from_numpy(part).to(context.device)) for part in narrow]
    return ResidentSource(spec, tables[0], tables[1], batch_sizes(cfg), context)


def _windows(tokens: NDArray[Any], length: int) -> NDArray[Any]:
    """Rows of length+1 tokens; row i starts at token i · length, so each token is a target once."""
    if tokens.ndim == 2:
        return tokens
    count = max(0, (len(tokens) - 1) // length)
    starts = np.arange(count)[:, None] * length
    windows: NDArray[Any] = tokens[starts + np.arange(length + 1)]
    return windows


def _narrow(tokens: NDArray[Any], vocabulary: int) -> NDArray[Any]:
    return np.ascontiguousarray(tokens, dtype=np.uint8 if vocabulary <= 256 else np.int32)
