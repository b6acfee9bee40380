"""Image folders: classes, seeded crops, broken files, workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mpt.config.schema import DataConfig
from mpt.data import _feed, _shm, image_folder
from mpt.data._context import DataContext, DataSource
from mpt.data._images import Normalise
from mpt.data._order import AUGMENT, generator
from mpt.data._tree import scan
from mpt.errors import DataError, ExitCode, RunFault
from mpt.types import Batch, InputSpec

Config = Callable[..., DataConfig]
WANTED = InputSpec("images", channels=3)


def put(file: Path, value: int | None = None, size: tuple[int, int] = (20, 24)) -> None:
    """An image of one grey value, or of noise that its name decides."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(list(os.fsencode(file.name)))
    pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8) if value is None else np.full((*size, 3), value, np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two classes, 10 training and 4 evaluation images each."""
    for part, n in (("train", 10), ("val", 4)):
        for name in ("a", "b"):
            for i in range(n):
                put(tmp_path / part / name / f"{i}.png")
    return tmp_path


@contextmanager
def opened(config: DataConfig, **context: Any) -> Iterator[DataSource]:
    source = image_folder.open_data(config, WANTED, DataContext(**{"seed": 0, "device": "cpu", **context}))
    try:
        yield source
    finally:
        source.close()


@pytest.fixture
def folder(tree: Path, data_config: Config) -> Callable[..., DataConfig]:
    def make(**changes: Any) -> DataConfig:
        return data_config("image_folder", **{"root": str(tree), "image_size": 16, "batch_size": 6, **changes})

    return make


def pixels(batches: Iterator[Batch], n: int) -> torch.Tensor:
    return torch.stack([b.inputs for b in islice(batches, n)])


def test_threads_that_read_for_a_cpu_normalise_too(folder: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the training thread that took longer than in one: its kernels' threads wait for cores that decode."""
    by: set[str] = set()
    whole = Normalise.__call__

    def seen(self: Normalise, raw: torch.Tensor) -> torch.Tensor:
        by.add(threading.current_thread().name)
        return whole(self, raw)

    monkeypatch.setattr(Normalise, "__call__", seen)
    with opened(folder(workers=2, threads="true")) as source:
        pixels(source.train(0), 4)
    assert by <= {"mpt-data-0", "mpt-data-1"}
    assert by


@pytest.mark.parametrize("start", [0, 2, 4])
@pytest.mark.parametrize("threads", ["true", "false"])
def test_workers_and_resume_change_no_pixel(folder: Config, start: int, threads: str) -> None:
    with opened(folder()) as here, opened(folder(workers=2, threads=threads)) as workers:
        whole = pixels(here.train(0), 7)
        assert torch.equal(pixels(workers.train(start), 7 - start), whole[start:])
        assert torch.equal(*(torch.cat([b.inputs for b in s.eval()]) for s in (here, workers)))


def test_crops_differ_between_epochs_samples_and_seeds(folder: Config, tree: Path) -> None:
    """One picture in all files: only the crop can tell batches apart."""
    for file in (tree / "train").glob("*/*.png"):
        put(tree / "x.png", size=(100, 120))
        file.write_bytes((tree / "x.png").read_bytes())
    crops = []
    for seed in (0, 1):
        with opened(folder(workers=2, batch_size=20), seed=seed) as source:
            crops += [x.numpy().tobytes() for x in pixels(source.train(0), 3).flatten(0, 1)]
    assert len(crops) == 120
    assert len(set(crops)) == 120


def test_seeds_of_samples_are_unique() -> None:
    seeds = {int(generator(AUGMENT, s, e, i).random_raw()) for s in range(3) for e in range(10) for i in range(100)}
    assert len(seeds) == 3000


def test_without_augmentation_training_sees_the_crop_of_evaluation(folder: Config, tree: Path) -> None:
    for name in ("a", "b"):
        for file in (tree / "val" / name).glob("*.png"):
            (tree / "train" / name / file.name).write_bytes(file.read_bytes())
    with opened(folder(options={"augment": False}, batch_size=20)) as source:
        seen = {x.numpy().tobytes() for x in pixels(source.train(0), 1)[0]}
        assert all(x.numpy().tobytes() in seen for batch in source.eval() for x in batch.inputs)


def test_pixels_are_normalised_with_imagenets_statistics(folder: Config, tree: Path) -> None:
    for file in (tree / "train").glob("*/*.png"):
        put(file, value=100)
    with opened(folder()) as source:
        x = next(source.train(0)).inputs
    for channel, (mean, std) in enumerate(zip(image_folder.MEAN, image_folder.STD, strict=True)):
        assert (x[:, channel].double() - (100 / 255 - mean) / std).abs().max() <= 4 * 2.0**-24 * 3


def test_classes_of_training_number_those_of_evaluation(folder: Config, tree: Path) -> None:
    """Field report I5: without `a` in evaluation, `b` is still class 1."""
    for file in (tree / "val" / "a").iterdir():
        file.unlink()
    (tree / "val" / "a").rmdir()
    with opened(folder()) as source:
        assert source.spec.classes == ("a", "b")
        assert {int(t) for b in source.eval() for t in b.targets} == {1}
        assert any("no images in a" in note for note in source.notes)


def test_an_empty_class_keeps_its_number_and_is_told(folder: Config, tree: Path) -> None:
    (tree / "train" / "aa").mkdir()
    with opened(folder()) as source:
        assert source.spec.classes == ("a", "aa", "b")
        assert {int(t) for b in source.eval() for t in b.targets} == {0, 2}
        assert any("no images in aa" in note for note in source.notes)


def test_a_class_that_training_has_not_is_refused(folder: Config, tree: Path) -> None:
    put(tree / "val" / "zebra" / "1.png")
    with pytest.raises(DataError, match="has classes that training has not: zebra"), opened(folder()):
        pass


def test_hidden_files_and_folders_and_other_files_are_no_samples(folder: Config, tree: Path) -> None:
    put(tree / "train" / ".ipynb_checkpoints" / "1.png")
    put(tree / "train" / "a" / ".thumbs" / "1.png")
    put(tree / "train" / "a" / "._1.png")
    (tree / "train" / "a" / "notes.txt").write_text("x")
    with opened(folder()) as source:
        assert source.spec.classes == ("a", "b")
        assert source.spec.n_train == 20


def test_folders_below_a_class_belong_to_it_and_loops_end(folder: Config, tree: Path) -> None:
    put(tree / "train" / "a" / "more" / "1.JPG")
    (tree / "train" / "a" / "more" / "loop").symlink_to(tree / "train" / "a")
    with opened(folder()) as source:
        assert source.spec.n_train == 21


def test_number_names_are_told_when_their_order_is_that_of_text(folder: Config, tree: Path) -> None:
    """Field report I7: folder `10` comes before folder `2`."""
    for part in ("train", "val"):
        for old, new in (("a", "2"), ("b", "10")):
            (tree / part / old).rename(tree / part / new)
    with opened(folder()) as source:
        assert source.spec.classes == ("10", "2")
        assert any("order of their text" in note for note in source.notes)


def test_one_folder_is_split_alike_in_each_class_and_for_all_seeds(folder: Config, tree: Path) -> None:
    config = folder(root=str(tree / "train"), options={"val_frac": 0.3})
    held = []
    for seed in (0, 1):
        with opened(config, seed=seed) as source:
            assert (source.spec.n_train, source.spec.n_eval) == (14, 6)
            batches = list(source.eval())
            assert torch.bincount(torch.cat([b.targets for b in batches])).tolist() == [3, 3]
            held.append(torch.cat([b.inputs for b in batches]))
    assert torch.equal(*held)


def test_any_file_name_works(folder: Config, tree: Path) -> None:
    for name in ("ü ñ.png", "new\nline.png", os.fsdecode(b"\xff\xfe.png"), "=,[].png"):
        put(tree / "x.png")
        os.link(tree / "x.png", tree / "train" / "a" / name)
    with opened(folder(batch_size=24, workers=1)) as source:
        assert source.spec.n_train == 24
        next(source.train(0))


@pytest.mark.parametrize(("workers", "threads"), [(0, "auto"), (2, "true"), (2, "false")])
def test_a_broken_file_stops_the_run_with_its_name(folder: Config, tree: Path, workers: int, threads: str) -> None:
    broken = tree / "train" / "b" / "3.png"
    broken.write_bytes(broken.read_bytes()[:200])
    with opened(folder(workers=workers, threads=threads)) as source, pytest.raises(RunFault) as fault:
        list(islice(source.train(0), 4))
    assert str(broken) in str(fault.value)
    assert "data.on_error=skip" in str(fault.value)
    assert fault.value.exit_code == ExitCode.FAULT


def test_skipping_replaces_a_broken_file_the_same_way_everywhere_and_names_it(folder: Config, tree: Path) -> None:
    broken = tree / "train" / "b" / "3.png"
    broken.write_text("<html>")
    seen = []
    for threads, workers, start in (("auto", 0, 0), ("true", 2, 0), ("true", 2, 2), ("false", 2, 2)):
        with opened(folder(on_error="skip", workers=workers, threads=threads)) as source:
            seen.append(pixels(source.train(start), 6 - start))
            if start == 0:
                assert source.skipped == [str(broken)]
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0][2:], seen[2])
    assert torch.equal(seen[2], seen[3])


def test_a_batchs_samples_are_those_that_took_the_place_of_broken_ones(folder: Config, tree: Path) -> None:
    files = sorted((tree / "train").rglob("*.png"))
    for grey, file in enumerate(files):
        put(file, 10 * grey)
    for broken in files[3], files[11], files[12]:
        broken.write_text("<html>")
    with opened(folder(on_error="skip")) as source:
        for micro, batch in enumerate(islice(source.train(0), 6)):
            names = source.sample_names(source.train_indices(micro))
            assert len(names) == len(batch.inputs)
            greys = torch.tensor([10.0 * files.index(Path(name)) for name in names])
            order = batch.inputs[:, 0, 0, 0].argsort(stable=True)
            assert torch.equal(order, greys.argsort(stable=True))
        assert len(source.skipped) == 3


def test_evaluation_leaves_broken_files_out_instead_of_counting_others_twice(folder: Config, tree: Path) -> None:
    (tree / "val" / "a" / "1.png").write_bytes(b"")
    with opened(folder(on_error="skip", eval_batch_size=3)) as source:
        assert sum(len(b.targets) for b in source.eval()) == source.spec.n_eval - 1
        assert source.skipped == [str(tree / "val" / "a" / "1.png")]


def test_nothing_but_broken_files_ends_the_run(folder: Config, tree: Path) -> None:
    for file in (tree / "train").glob("*/*.png"):
        file.write_bytes(b"")
    with opened(folder(on_error="skip")) as source, pytest.raises(RunFault, match="a whole batch can't be read"):
        next(source.train(0))


def test_an_evaluation_of_which_nothing_can_be_read_ends_the_run(folder: Config, tree: Path) -> None:
    for file in (tree / "val").glob("*/*.png"):
        file.write_bytes(b"")
    with opened(folder(on_error="skip", eval_batch_size=3)) as source:
        with pytest.raises(RunFault, match=r"data\.root: no evaluation sample can be read \(.*png"):
            list(source.eval())
        with pytest.raises(RunFault, match=r"data\.root"):  # and so it does the next time
            list(source.eval())


def test_one_batch_is_read_without_workers(folder: Config, tree: Path) -> None:
    broken = tree / "train" / "b" / "3.png"
    broken.write_bytes(b"")
    before = children()
    with opened(folder(on_error="skip", workers=2)) as source:
        alone = [source.batch(micro).inputs for micro in range(6)]
        assert children() == before
        assert torch.equal(torch.stack(alone), pixels(source.train(0), 6))


def children() -> set[int]:
    import multiprocessing

    return {p.pid for p in multiprocessing.active_children() if p.pid}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_workers_outlive_signals_and_end_with_the_source(folder: Config, sent: signal.Signals) -> None:
    before = children()
    with opened(folder(workers=2, threads="false")) as source:
        batches = source.train(0)
        next(batches)
        for pid in children() - before:
            os.kill(pid, sent)
        assert len(list(islice(batches, 20))) == 20
    assert children() == before


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_has_only_begun_outlives_signals_too(
    folder: Config, sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker is sent one before it has come to ignore them."""
    begun = _feed.ignore_signals

    def slowly(worker: int) -> None:
        os.kill(os.getpid(), sent)
        begun(worker)

    monkeypatch.setattr(_feed, "ignore_signals", slowly)
    with opened(folder(workers=2, threads="false")) as source:
        assert len(list(islice(source.train(0), 8))) == 8


@pytest.fixture
def with_worker(folder: Config) -> Iterator[tuple[Iterator[Batch], int]]:
    """Batches of a source that has begun, and its one worker."""
    before = children()
    with opened(folder(workers=1, threads="false")) as source:
        batches = source.train(0)
        next(batches)
        (worker,) = children() - before
        yield batches, worker


def test_a_worker_that_is_killed_is_a_fault_with_a_next_move(with_worker: tuple[Iterator[Batch], int]) -> None:
    batches, worker = with_worker

    def go_on() -> None:
        os.kill(worker, signal.SIGKILL)
        list(islice(batches, 50))

    with pytest.raises(RunFault, match=r"worker .*(killed|exited|died)") as fault:
        go_on()
    assert "data.workers=0" in str(fault.value)


def test_a_worker_that_dies_while_nobody_waits_is_told_by_the_next_wait(
    with_worker: tuple[Iterator[Batch], int],
) -> None:
    """What the program was doing, as saving, is not torn apart by an error from a signal's handler."""
    batches, worker = with_worker
    os.kill(worker, signal.SIGKILL)
    until = time.monotonic() + 20
    while worker not in _feed.DEATHS._seen and time.monotonic() < until:
        time.sleep(0.01)  # the handler runs in here, and raises nothing
    with pytest.raises(RunFault, match=rf"worker \(pid {worker}\) is killed"):
        next(batches)


def test_the_index_holds_no_object_per_file(tree: Path) -> None:
    """Field report I12: workers that touch a list's reference counts copy its pages."""
    index = scan(tree / "train", ("a", "b"))
    assert len(index) == 20
    assert {type(v) for v in vars(index).values()} <= {str, bytes, np.ndarray}
    assert [index.path(i) for i in range(20)] == sorted(str(p) for p in (tree / "train").glob("*/*.png"))
    taken = index.take(np.array([7, 3]))
    assert [taken.path(i) for i in range(2)] == [index.path(7), index.path(3)]


def test_what_is_missing_is_found_before_anything_starts(data_config: Config, tmp_path: Path) -> None:
    def told(**changes: Any) -> str:
        return "\n".join(map(str, image_folder.check(data_config("image_folder", **changes))))

    assert "data.root: is not set" in told()
    assert f"no folder {tmp_path / 'x'}" in told(root=str(tmp_path / "x"))
    assert "holds no folder with images" in told(root=str(tmp_path))
    put(tmp_path / "train" / "a" / "1.png")
    assert "has train/ but no val/" in told(root=str(tmp_path))
    put(tmp_path / "val" / "a" / "1.png")
    assert told(root=str(tmp_path)) == ""
    assert "data.val_frac: got 1.5" in told(root=str(tmp_path), options={"val_frac": 1.5})
    assert "data.background: got [1, 2]" in told(root=str(tmp_path), options={"background": [1, 2]})


def test_too_little_shared_memory_is_found_before_anything_starts(
    folder: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """2 workers prepare 2 batches each, of 6 and of 24 images of 16x16x3 bytes: 92,160 bytes."""
    monkeypatch.setattr(_shm, "SHM", tmp_path)
    monkeypatch.setattr(_shm, "_free", lambda folder: 92_160)
    assert image_folder.check(folder(workers=2, threads="false")) == []
    monkeypatch.setattr(_shm, "_free", lambda folder: 92_159)
    problems = image_folder.check(folder(workers=2, threads="false"))
    assert "--shm-size" in str(problems[0])
    assert image_folder.check(folder(workers=2)) == []  # threads share the memory that there is
    assert image_folder.check(folder(workers=0)) == []


LEAVES = """
import sys
from mpt.config.schema import DataConfig
from mpt.data import image_folder
from mpt.data._context import DataContext
from mpt.types import InputSpec
config = DataConfig("image_folder", 6, None, sys.argv[1], False, 2, "error", 16, None, None, None, sys.argv[2])
source = image_folder.open_data(config, InputSpec("images"), DataContext(0, "cpu"))
batches = source.train(0)
next(batches)
raise KeyError("left without close")
"""


@pytest.mark.parametrize("threads", ["true", "false"])
def test_a_process_that_leaves_without_closing_does_not_hang_on_its_workers(tree: Path, threads: str) -> None:
    """Worker processes ignore the signal with which multiprocessing would end them at exit."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, str(tree), threads], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "left without close" in done.stderr


def test_hidden_folders_are_told_and_are_no_classes(folder: Config, tree: Path) -> None:
    with opened(folder()) as source:
        assert not any("hidden" in note for note in source.notes)
    put(tree / "train" / ".thumbs" / "0.png")
    (tree / "val" / ".hidden_file").touch()
    with opened(folder()) as source:
        assert source.spec.classes == ("a", "b")
        assert [note for note in source.notes if "hidden" in note] == [
            f"{tree / 'train'}: hidden folders are no classes and are left out: .thumbs"
        ]


def test_images_that_are_enlarged_are_told(data_config: Config, tmp_path: Path) -> None:
    for name, side in (("small", 30), ("large", 40)):
        for label in ("a", "b"):
            (tmp_path / name / label).mkdir(parents=True)
            for i in range(10):
                Image.new("RGB", (side + 2, side)).save(tmp_path / name / label / f"{i}.png")
    for name, wanted, size, told in (
        ("small", InputSpec("images", size=32), None, "images of 32×30 pixels are enlarged to 32×32"),
        ("small", InputSpec("images", size=30), None, None),
        ("small", InputSpec("images"), 32, None),
        ("large", InputSpec("images", size=32), None, None),
        ("large", InputSpec("images"), None, "images of 42×40 pixels are enlarged to 224×224"),
    ):
        config = data_config("image_folder", root=str(tmp_path / name), image_size=size)
        with closing(image_folder.open_data(config, wanted, DataContext(0, "cpu"))) as source:
            assert [n.partition(";")[0] for n in source.notes if "enlarged" in n] == ([told] if told else [])


def test_i2_samples_that_were_converted_are_counted_once_whatever_the_epochs(folder: Config, tree: Path) -> None:
    for name in ("1.png", "2.png"):
        file = tree / "train" / "a" / name
        Image.open(file).convert("L").save(file)
    Image.open(tree / "val" / "a" / "0.png").convert("RGBA").save(tree / "val" / "a" / "0.png")
    with opened(folder(workers=2, batch_size=10)) as source:
        list(islice(source.train(0), 6))
        assert source.converted == {"L converted to RGB": 2}
        for _ in range(2):
            list(source.eval())
        assert source.converted["RGBA with transparency, laid on data.background"] == 1


def test_a_file_that_goes_while_the_run_reads_is_a_fault_by_name_or_skipped(folder: Config, tree: Path) -> None:
    with opened(folder()) as strict, opened(folder(on_error="skip")) as lenient:
        gone = tree / "train" / "a" / "4.png"
        gone.unlink()
        with pytest.raises(RunFault, match=r"4\.png: can't be read: FileNotFoundError"):
            list(islice(strict.train(0), 4))
        list(islice(lenient.train(0), 4))
        assert lenient.skipped == [str(gone)]


def test_a_class_folder_that_can_not_be_listed_is_told_before_anything_starts(
    folder: Config, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    (problem,) = image_folder.check(folder())
    assert problem.where.endswith("/a")
    assert "Permission denied" in problem.what
    with pytest.raises(DataError, match="Permission denied"), opened(folder()):
        pass


def test_files_met_again_while_replacing_are_counted_once(folder: Config, tree: Path) -> None:
    broken = sorted((tree / "train" / "a").iterdir())
    for path in broken:
        path.write_bytes(b"no image")
    with opened(folder(on_error="skip", batch_size=64)) as source:
        next(source.train(0))
        assert sorted(source.skipped) == [str(path) for path in broken]
