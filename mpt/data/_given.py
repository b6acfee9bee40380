"""What the user's callable returned, checked and opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.data._datasets import DatasetReader, Pair, tensor_of
from mpt.data._doubts import doubts, require_numbers
from mpt.data._features import open_features
from mpt.data._feed import FeedSettings
from mpt.data._images import finisher, plan_images
from mpt.data._open import RawImages, batch_sizes, open_images
from mpt.data._resident import ResidentSource, Table
from mpt.data._spec import fingerprint, limited, require_kind, require_samples
from mpt.data._stream import StreamSource
from mpt.data._workers import worker_count
from mpt.errors import DataError, Problem
from mpt.types import DataKind, DataSpec, InputSpec
from mpt.usercode import FAULTS

WANTED = 'want {"train": (inputs, targets), "eval": …} or {"train": dataset, "eval": dataset, "classes": n}'
PARTS = ("train", "eval")
Kind = Literal["images", "tokens", "features"]


def _refuse(what: str, hint: str = WANTED) -> DataError:
    return DataError(Problem("data.path", what, hint))


@dataclass(frozen=True)
class Arrays:
    """Both parts as tensors, and the class names (tokens: how many there are)."""

    kind: Kind
    train: Pair
    evaluation: Pair
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Datasets:
    """Both parts as torch data sets, and the class names (tokens: how many there are)."""

    path: str
    train: Dataset[Any]
    evaluation: Dataset[Any]
    classes: tuple[str, ...]


def _parts(result: object, path: str) -> list[Any]:
    if not isinstance(result, Mapping) or not all(part in result for part in PARTS):
        raise _refuse(f"`{path}` returned {_told(result)}")
    return [result[part] for part in PARTS]


def _told(result: object) -> str:
    if isinstance(result, Mapping):
        return "a mapping with the keys " + (", ".join(map(str, result)) or "(none)")
    return f"a {type(result).__name__}"


def _classes(given: object, default: int | None) -> tuple[str, ...]:
    if given is None and default is not None:
        return tuple(str(i) for i in range(default))
    if isinstance(given, int) and given > 0:
        return tuple(str(i) for i in range(given))
    if isinstance(given, list | tuple) and given:
        return tuple(str(name) for name in given)
    raise _refuse(f"`classes` is {given!r}", "give the classes' names, or how many there are")


def given_datasets(result: object, path: str) -> Datasets | None:
    """The torch data sets in `result`; None where it holds arrays.

    Raises: DataError for a set without length, or one whose classes are unknown.
    """
    train, evaluation = _parts(result, path)
    if not isinstance(train, Dataset) or not isinstance(evaluation, Dataset):
        return None
    for part, dataset in zip(PARTS, (train, evaluation), strict=True):
        if isinstance(dataset, IterableDataset):
            raise _refuse(f"`{part}` is an IterableDataset, whose order can't be resumed", "give a map-style Dataset")
    assert isinstance(result, Mapping)
    return Datasets(path, train, evaluation, _classes(result.get("classes"), None))


def given_arrays(result: object, path: str) -> Arrays:
    """The arrays in `result` as tensors.

    Raises: DataError where shapes or labels do not fit.
    """
    pairs = [_pair(part, given) for part, given in zip(PARTS, _parts(result, path), strict=True)]
    for part, pair in zip(PARTS, pairs, strict=True):
        require_numbers(part, *pair)
    kinds = {_kind(*pair) for pair in pairs}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        shapes = [tuple(t.shape) for pair in pairs for t in pair]
        wanted = "want images B,C,H,W or floating features B,F with targets B, or token ids B,L with targets B,L"
        raise _refuse(f"`{path}` returned shapes {shapes}", wanted)
    targets = [y for _, y in pairs]
    ids = targets if kind != "tokens" else [t for pair in pairs for t in pair]
    assert isinstance(result, Mapping)
    classes = _classes(result.get("classes"), int(max(t.max() for t in ids)) + 1)
    _require_range(ids, len(classes))
    return Arrays(kind, pairs[0], pairs[1], classes)


def _pair(part: str, given: Any) -> Pair:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise _refuse(f"`{part}` is {_told(given)}, want a pair (inputs, targets)")
    try:
        inputs, targets = (tensor_of(x) for x in given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _refuse(f"`{part}` can't become tensors: {error}") from error
    if not len(targets) or len(inputs) != len(targets):
        raise _refuse(f"`{part}` has {len(inputs)} inputs and {len(targets)} targets")
    return inputs, targets


def _kind(inputs: Tensor, targets: Tensor) -> Kind | None:
    if targets.is_floating_point() or targets.is_complex():
        return None
    if inputs.ndim == 4 and targets.ndim == 1:
        return "images"
    if inputs.ndim == 2 and inputs.is_floating_point() and targets.ndim == 1:
        return "features"
    fits = inputs.ndim == 2 and inputs.shape == targets.shape and not inputs.is_floating_point()
    return "tokens" if fits else None


def _require_range(ids: list[Tensor], classes: int) -> None:
    low, high = min(int(t.min()) for t in ids), max(int(t.max()) for t in ids)
    if low < 0 or high >= classes:
        raise _refuse(f"targets go from {low} to {high}, but there are {classes} classes", "number classes from 0")


def open_arrays(cfg: DataConfig, wanted: InputSpec, context: DataContext, given: Arrays) -> DataSource:
    """A resident source; images of bytes are scaled to 0–1, others are taken as they are."""
    content = tuple(t.contiguous().numpy().tobytes() for t in (*given.train, *given.evaluation))
    if given.kind == "images":
        scale = 255.0 if given.train[0].dtype == torch.uint8 else 1.0
        parts = [(x.permute(0, 2, 3, 1).numpy(), y.numpy()) for x, y in (given.train, given.evaluation)]
        raw = RawImages(parts[0], parts[1], scale, (0.0,), (1.0,), given.classes, fingerprint(*content))
        source = open_images(cfg, wanted, context, raw)
        source.notes += doubts(*given.train, given.classes)
        return source
    if given.kind == "features":
        return open_features(cfg, wanted, context, given.train, given.evaluation, given.classes, fingerprint(*content))
    require_kind(cfg, wanted, "tokens")
    n = limited(cfg, len(given.train[1]))
    require_samples(cfg, n, len(given.evaluation[1]), context.world)
    length = given.train[0].shape[1]
    require_length(wanted, length)
    spec = DataSpec(
        name=cfg.name, kind="tokens", shape=(length,), num_classes=len(given.classes), n_train=n,
        n_eval=len(given.evaluation[1]), classes=(), fingerprint=fingerprint(*content, n),
    )  # fmt: skip
    train, evaluation = (
        Table(*(t.to(context.device, torch.int64) for t in pair))
        for pair in ((given.train[0][:n], given.train[1][:n]), given.evaluation)
    )
    return ResidentSource(spec, train, evaluation, batch_sizes(cfg), context)


def require_length(wanted: InputSpec, length: int) -> None:
    """Raises: DataError when windows are longer than the model's context."""
    if wanted.context is not None and length > wanted.context:
        what = f"windows of {length} tokens, but the model takes {wanted.context}"
        raise DataError(Problem("model.context, data", what, f"use model.context={length}, or shorter windows"))


def open_datasets(cfg: DataConfig, wanted: InputSpec, context: DataContext, given: Datasets) -> DataSource:
    """A stream; the first sample tells shape and kind."""
    n, n_eval = limited(cfg, len(given.train)), len(given.evaluation)  # type: ignore[arg-type]
    require_samples(cfg, n, n_eval, context.world)
    readers = [DatasetReader(d, size, len(given.classes)) for d, size in ((given.train, n), (given.evaluation, n_eval))]
    first = _first(readers[0])
    kind: DataKind = "images" if first.ndim == 3 else "tokens"
    require_kind(cfg, wanted, kind)
    shape: tuple[int, ...] = (len(first),)
    finish: Callable[[Tensor], Tensor] = Tensor.long
    if kind == "images":
        height, width, channels = first.shape
        scale = 255.0 if first.dtype == torch.uint8 else 1.0
        plan = plan_images(cfg, wanted, (channels, height, width), (0.0,), (1.0,))
        shape, finish = plan.shape, finisher(plan, scale, context.device, last=context.channels_last)
    else:
        require_length(wanted, len(first))
    spec = DataSpec(
        name=cfg.name, kind=kind, shape=shape, num_classes=len(given.classes), n_train=n, n_eval=n_eval,
        classes=given.classes if kind == "images" else (),
        fingerprint=fingerprint(given.path, sorted(cfg.options.items()), n, n_eval, shape),
    )  # fmt: skip
    settings = FeedSettings(worker_count(cfg), pin=torch.device(context.device).type == "cuda")
    return StreamSource(
        spec, readers[0], readers[1], batch_sizes(cfg), context, settings, cfg.on_error, finish, notes=[]
    )


def _first(reader: DatasetReader) -> Tensor:
    try:
        x, y, _ = reader.read(0, np.random.Philox(0))
    except FAULTS as error:
        raise _refuse(f"{reader.name(0)} can't be read: {type(error).__name__}: {error}", WANTED) from error
    if not (x.ndim == 3 and y.ndim == 0) and not (x.ndim == 1 and x.shape == y.shape):
        wanted = "want C,H,W with one class number (F features: x.reshape(F, 1, 1)), or token ids L with targets L"
        raise _refuse(f"{reader.name(0)} has inputs {tuple(x.shape)} and targets {tuple(y.shape)}", wanted)
    return x
