"""Row 19: JPEG files to normalised batches of random 224-pixel crops, against torchvision's DataLoader."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from _cells import Cell, ratio
from _measure import Effort, interleaved
from _photos import write_tree
from _row import main

from mpt.config.compose import compose
from mpt.data import image_folder
from mpt.data._context import DataContext
from mpt.data._workers import usable_cpus
from mpt.types import InputSpec

LIMIT = 1 / 1.5
BATCH = 32
SHAPES = {
    "256-pixel": [(256, 256), (256, 341), (341, 256), (256, 384)],
    "photographs of 12 million pixels": [(3024, 4032)],
}
PEER = (
    "ImageFolder with RandomResizedCrop(224), RandomHorizontalFlip, ToTensor, Normalize in a DataLoader "
    "(torchvision's reference training)"
)


def measure(effort: Effort) -> list[Cell]:
    """256-pixel files on one core and on all of them, and large photographs on one."""
    cells = []
    for name, shapes in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            root = write_tree(Path(folder), shapes, each=BATCH // len(shapes))
            small = len(shapes) > 1
            with one_core():
                cells.append(cell(f"{name}, one core", root, 0, 8 if small else 1, LIMIT if small else None, effort))
            if small and usable_cpus() > 1:
                cells.append(cell(f"{name}, {usable_cpus()} cores", root, usable_cpus(), 24, LIMIT, effort))
    return cells


def cell(name: str, root: Path, workers: int, batches: int, limit: float | None, effort: Effort) -> Cell:
    """Microseconds an image of both; `batches` in a turn."""
    programs = {
        "ours": partial(image_us, partial(ours, root, workers), batches, 2 * workers),
        "peer": partial(image_us, partial(peer, root, workers), batches, 2 * workers),
    }
    found = interleaved(programs, effort)
    how = f"{workers} workers each" if workers else "in the training thread"
    decoder = "simplejpeg" if find_spec("simplejpeg") else "Pillow"
    what = f"image_folder with data.workers={workers}, decoded by {decoder}, float32 batches on the CPU / {PEER}, {how}"
    return ratio(19, name, found["ours"], found["peer"], limit, what, unit="us")


def image_us(start: Callable[[], Iterator[torch.Tensor]], batches: int, fill: int) -> float:
    """Microseconds an image while nothing else is done: what was read before `fill` batches are gone does not count."""
    stream = start()
    for _ in range(fill + 1):
        next(stream)
    start_s = time.perf_counter()
    for _ in range(batches):
        next(stream)
    spent_s = time.perf_counter() - start_s
    stream.close()  # type: ignore[attr-defined]
    return 1e6 * spent_s / (batches * BATCH)


def ours(root: Path, workers: int, device: str = "cpu") -> Iterator[torch.Tensor]:
    """The runner's batches; the source is closed with the generator."""
    cfg = compose(["data=image_folder", f"data.root={root}", f"data.workers={workers}", f"data.batch_size={BATCH}"])
    context = DataContext(seed=0, device=device, channels_last=True)
    source = image_folder.open_data(cfg.data, InputSpec("images", channels=3), context)
    try:
        for batch in source.train(0):
            yield batch.inputs
    finally:
        source.close()


def peer(root: Path, workers: int) -> Iterator[torch.Tensor]:
    """Endless epochs, with workers that outlive them."""
    from torch.utils.data import DataLoader
    from torchvision import datasets
    from torchvision import transforms as T

    steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor()]
    look = T.Compose([*steps, T.Normalize(image_folder.MEAN, image_folder.STD)])
    data = datasets.ImageFolder(str(root / "train"), look)
    loader = DataLoader(data, BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0)
    while True:
        for inputs, _ in loader:
            yield inputs


@contextmanager
def one_core() -> Iterator[None]:
    """This thread, and what it starts, stays on one core with one thread; macOS has no such switch."""
    threads = torch.get_num_threads()
    cores = os.sched_getaffinity(0)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main(measure, __doc__, repeats=10)
