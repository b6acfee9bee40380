"""The user's own images: `root/train/CLASS/…` and `root/val/CLASS/…`, or `root/CLASS/…` with a split.

Classes are numbered in the lexicographic order of the training folders' names; the same numbers hold in evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt.config.options import merged
from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.errors import DataError, Problem
from mpt.types import DataKind, DataSpec, InputSpec

if TYPE_CHECKING:
    from mpt.data._tree import Tree

KIND: DataKind = "images"
READS = ("root",)
DEFAULTS: dict[str, Any] = {"val_frac": 0.2, "augment": True, "draft": True, "background": [255, 255, 255]}
DEFAULT_SIZE = 224
# ImageNet's statistics, what torchvision's and timm's weights were trained with.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The split, and the choice of data.limit samples, are the data set's own, not the run's.
SPLIT_SEED = 0


def check(cfg: DataConfig) -> list[Problem]:
    """Whether there are class folders with images, and whether batches fit into shared memory."""
    from mpt.data._shm import shm_problems
    from mpt.data._tree import class_names, parts, scan

    if cfg.root is None:
        return [Problem("data.root", "is not set", "give the folder that holds train/CLASS/… and val/CLASS/…")]
    root = Path(cfg.root).expanduser()
    if not root.is_dir():
        return [Problem("data.root", f"no folder {root.absolute()}", "paths are relative to the current folder")]
    train, evaluation = parts(root)
    if train != root and evaluation is None:
        return [Problem(f"{root}", "has train/ but no val/", "add val/, or put the classes directly into data.root")]
    problems = _option_problems(cfg)
    try:
        for folder in (train, evaluation):
            if folder is not None and not any(len(scan(folder, (name,))) for name in class_names(folder)):
                problems.append(Problem(str(folder), "holds no folder with images", "one folder for each class"))
    except DataError as error:
        problems += error.problems
    return problems + shm_problems(cfg, cfg.image_size or DEFAULT_SIZE)


def _option_problems(cfg: DataConfig) -> list[Problem]:
    options = {**DEFAULTS, **cfg.options}
    problems = []
    if not 0 < options["val_frac"] < 1:
        problems.append(Problem("data.val_frac", f"got {options['val_frac']}", "give a number between 0 and 1"))
    colour = options["background"]
    if len(colour) != 3 or not all(isinstance(c, int) and 0 <= c <= 255 for c in colour):
        problems.append(Problem("data.background", f"got {colour}", "give red, green, blue of 0–255: [255,255,255]"))
    return problems


@dataclass(frozen=True)
class Split:
    """Both parts of a tree, the class names, and what is odd about them."""

    train: Tree
    evaluation: Tree
    classes: tuple[str, ...]
    notes: list[str]


def open_data(cfg: DataConfig, wanted: InputSpec, context: DataContext) -> DataSource:
    """A stream of crops: random and flipped in training (data.augment), central in evaluation.

    Raises: DataError when folders, classes and model do not fit.
    """
    import torch

    from mpt.data._crops import FolderReader, enlarged
    from mpt.data._feed import FeedSettings
    from mpt.data._images import finisher, plan_images
    from mpt.data._open import batch_sizes
    from mpt.data._spec import fingerprint, require_kind, require_samples
    from mpt.data._stream import StreamSource
    from mpt.data._workers import by_threads, worker_count

    require_kind(cfg, wanted, KIND)
    options = merged("data", cfg.options, DEFAULTS)
    split = read_split(cfg, options["val_frac"])
    require_samples(cfg, len(split.train), len(split.evaluation), context.world)
    native = (wanted.channels or 3, DEFAULT_SIZE, DEFAULT_SIZE)
    plan = plan_images(cfg, wanted, native, MEAN, STD)
    readers = [
        FolderReader(tree, plan.shape, tuple(options["background"]), augment=augment, draft=options["draft"])
        for tree, augment in ((split.train, options["augment"]), (split.evaluation, False))
    ]
    told = split.notes + (enlarged(split.train, min(plan.shape[1:])) if cfg.image_size is None else [])
    identity = fingerprint(*split.train.content(), *split.evaluation.content(), plan, sorted(options.items()))
    spec = DataSpec(
        name=cfg.name, kind="images", shape=plan.shape, num_classes=len(split.classes), n_train=len(split.train),
        n_eval=len(split.evaluation), classes=split.classes, fingerprint=identity,
    )  # fmt: skip
    pin = torch.device(context.device).type == "cuda"
    settings = FeedSettings(worker_count(cfg), pin=pin, threads=by_threads(cfg))
    return StreamSource(
        spec, readers[0], readers[1], batch_sizes(cfg), context, settings, cfg.on_error,
        finisher(plan, 255.0, context.device, last=context.channels_last), told,
    )  # fmt: skip


def read_split(cfg: DataConfig, val_frac: float) -> Split:
    """Training and evaluation files.

    Raises: DataError when a class of the evaluation part is unknown, or a part is empty.
    """
    from mpt.data._order import SPLIT, shuffled, stratified_split
    from mpt.data._tree import class_names, notes, parts, require_known, scan

    assert cfg.root is not None, "check() refuses a configuration without data.root"
    train_dir, eval_dir = parts(Path(cfg.root).expanduser())
    classes = class_names(train_dir)
    train = scan(train_dir, classes)
    odd = notes(train_dir, classes, train)
    if not len(train):
        raise DataError(Problem(str(train_dir), "holds no images", "one folder for each class"))
    if eval_dir is None:
        chosen, held = stratified_split(train.labels, val_frac, SPLIT_SEED)
        train, evaluation = train.take(chosen), train.take(held)
    else:
        require_known(eval_dir, classes)
        evaluation = scan(eval_dir, classes)
        odd += notes(eval_dir, classes, evaluation)
    if cfg.limit is not None and cfg.limit < len(train):
        train = train.take(shuffled(len(train), SPLIT, SPLIT_SEED)[: max(cfg.limit, 0)])
    return Split(train, evaluation, classes, odd)
