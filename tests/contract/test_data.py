"""What every data set promises: order, resume, ranks, counts and shapes; a new one is tested by being there."""

from __future__ import annotations

import pickle
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import md5
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from mpt import registry
from mpt.config.schema import DataConfig
from mpt.data._context import DataContext, DataSource
from mpt.data._order import micro_indices
from mpt.errors import DataError
from mpt.types import Batch, InputSpec

WANTED = {"images": InputSpec("images", min_size=4), "tokens": InputSpec("tokens", context=8)}
SHIPPED = {"digits", "shakespeare"}


def write_fashion_mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", 50), ("t10k", 21)):
        for kind, shape, top in (("images-idx3", (n, 28, 28), 256), ("labels-idx1", (n,), 10)):
            header = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
            content = header + rng.integers(0, top, shape, dtype=np.uint8).tobytes()
            (raw / f"{part}-{kind}-ubyte").write_bytes(content)
    return {"root": str(root)}


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> dict[str, Any]:
    """Small files in CIFAR-10's layout, whose sums torchvision is told to expect."""
    from torchvision.datasets import CIFAR10

    folder = root / CIFAR10.base_folder
    folder.mkdir()
    rng = np.random.default_rng(seed)

    def put(name: str, value: object) -> str:
        (folder / name).write_bytes(pickle.dumps(value))
        return md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest()

    def batch(n: int) -> dict[str, object]:
        return {"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8), "labels": (np.arange(n) % 10).tolist()}

    train = [f"data_batch_{i}" for i in range(1, 6)]
    monkeypatch.setattr(CIFAR10, "train_list", [[name, put(name, batch(10))] for name in train])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", put("test_batch", batch(21))]])
    names = {"label_names": [f"class {i}" for i in range(10)]}
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": put("batches.meta", names)})
    return {"root": str(root)}


def write_image_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    for part, n in (("train", 25), ("val", 11)):
        for name in ("cat", "dog"):
            (root / part / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 256, (12, 14, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{i}.png")
    return {"root": str(root), "image_size": 8}


def write_custom(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    source = """
        import torch

        def make(n):
            g = torch.Generator().manual_seed(0)
            def part(n):
                return torch.randn(n, 3, 8, 8, generator=g), torch.arange(n) % 4
            return {"train": part(n), "eval": part(21)}
    """
    file = root / f"{root.name}.py"
    file.write_text(textwrap.dedent(source))
    return {"options": {"path": f"{file}:make", "kwargs": {"n": 50}}}


def write_text(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    file = root / "mine.txt"
    file.write_bytes(np.random.default_rng(0).integers(0, 256, 500, dtype=np.uint8).tobytes())
    return {"root": str(file), "limit": 50}


SETUPS: dict[str, Callable[[Path, pytest.MonkeyPatch], dict[str, Any]]] = {
    "digits": lambda root, m: {"limit": 50},
    "shakespeare": lambda root, m: {"limit": 50},
    "text": write_text,
    "synthetic_images": lambda root, m: {"image_size": 8, "options": {"n": 50, "classes": 5}},
    "synthetic_tokens": lambda root, m: {"options": {"n": 50, "vocab": 300}},
    "fashion_mnist": write_fashion_mnist,
    "cifar10": write_cifar10,
    "image_folder": write_image_folder,
    "custom": write_custom,
}
NAMES = sorted(registry.names("data"))


class Case:
    """Opens one data set with 50 training samples."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self.entry = registry.load("data", config.name)
        self.kind = "images" if config.name == "custom" else self.entry.KIND

    @contextmanager
    def open(self, **context: Any) -> Iterator[DataSource]:
        where = DataContext(**{"seed": 0, "device": "cpu", **context})
        source = self.entry.open_data(self.config, WANTED[self.kind], where)
        try:
            yield source
        finally:
            source.close()


@pytest.fixture(params=NAMES)
def case(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data_config: Callable[..., DataConfig],
) -> Case:
    assert request.param in SETUPS, f"give `{request.param}` a small set-up here"
    changes = SETUPS[request.param](tmp_path, monkeypatch)
    return Case(data_config(request.param, **{"batch_size": 8, **changes}))


def equal(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.inputs, y.inputs) and torch.equal(x.targets, y.targets) for x, y in zip(a, b, strict=True)
    )


def test_check_finds_nothing_wrong_with_what_is_there(case: Case) -> None:
    assert case.entry.check(case.config) == []


def test_batches_have_the_shapes_that_the_spec_tells(case: Case) -> None:
    with case.open() as source:
        spec = source.spec
        assert (spec.kind, spec.n_train) == (case.kind, 50)
        assert source.batches_per_epoch == 6
        batch = next(source.train(0))
        assert batch.targets.dtype == torch.int64
        assert 0 <= batch.targets.min() <= batch.targets.max() < spec.num_classes
        assert tuple(batch.inputs.shape) == (8, *spec.shape)
        if spec.kind == "images":
            assert batch.inputs.dtype == torch.float32
            assert tuple(batch.targets.shape) == (8,)
            assert batch.inputs.is_contiguous()
        else:
            assert batch.inputs.dtype == torch.int64
            assert batch.targets.shape == batch.inputs.shape
            assert batch.inputs.max() < spec.num_classes


def test_channels_last_is_laid_out_without_changing_a_value(case: Case) -> None:
    if case.kind == "tokens":
        pytest.skip("tokens have no channels")
    with case.open() as plain, case.open(channels_last=True) as last:
        for a, b in islice(zip(plain.train(0), last.train(0), strict=True), 8):
            assert b.inputs.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(a.inputs, b.inputs)


def test_the_same_seed_gives_the_same_batches_and_another_seed_others(case: Case) -> None:
    with case.open() as a, case.open() as b, case.open(seed=1) as c:
        first = list(islice(a.train(0), 8))
        assert equal(first, list(islice(b.train(0), 8)))
        assert not equal(first, list(islice(c.train(0), 8)))


@pytest.mark.parametrize("start", [1, 5, 6, 9, 13])
def test_a_resume_at_any_micro_batch_goes_on_bit_for_bit(case: Case, start: int) -> None:
    """An epoch has 6 micro-batches: the resume lies inside and at the borders of epochs."""
    with case.open() as a, case.open() as b:
        whole = list(islice(a.train(0), start + 3))
        assert equal(whole[start:], list(islice(b.train(start), 3)))


@pytest.mark.parametrize("micro", [0, 4, 7])
def test_a_single_batch_is_the_one_of_the_stream(case: Case, micro: int) -> None:
    with case.open() as source:
        assert equal([source.batch(micro)], [next(source.train(micro))])
        assert equal([source.batch(micro)], [next(source.train(micro))])


def test_epochs_have_different_orders(case: Case) -> None:
    with case.open() as source:
        epochs = [[i for m in range(6) for i in source.train_indices(6 * e + m)] for e in range(3)]
    assert all(len(set(order)) == 48 for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3


def test_train_indices_tell_what_is_in_a_micro_batch(case: Case) -> None:
    """A sample that comes again has the same targets, whatever its crop."""
    seen: dict[int, torch.Tensor] = {}
    with case.open() as source:
        for micro, batch in enumerate(islice(source.train(0), 18)):
            indices = source.train_indices(micro)
            assert indices == micro_indices(0, micro, 50, 8, 0, 1).tolist()
            for index, target in zip(indices, batch.targets, strict=True):
                assert torch.equal(seen.setdefault(index, target), target)
    assert len(seen) > 40


def test_ranks_share_each_global_batch(case: Case) -> None:
    config = case.config
    with case.open() as one:
        alone = list(islice(one.train(0), 7))
    case.config = DataConfig(**{**vars(config), "batch_size": 4})
    with case.open(rank=0, world=2) as a, case.open(rank=1, world=2) as b:
        for whole, *shares in islice(zip(alone, a.train(0), b.train(0), strict=False), 7):
            assert torch.equal(whole.inputs, torch.cat([s.inputs for s in shares]))
            assert torch.equal(whole.targets, torch.cat([s.targets for s in shares]))


@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_gives_every_sample_once(case: Case, world: int) -> None:
    with case.open() as source:
        everything = list(source.eval())
        assert sum(len(b.targets) for b in everything) == source.spec.n_eval
        assert equal(everything, list(source.eval()))
    counts, rows = 0, []
    for rank in range(world):
        with case.open(rank=rank, world=world) as source:
            for batch in source.eval():
                counts += len(batch.targets)
                rows.append(batch.inputs)
    assert torch.equal(torch.cat(rows), torch.cat([b.inputs for b in everything]))
    assert counts == source.spec.n_eval


def test_a_batch_larger_than_the_set_is_the_whole_set(case: Case) -> None:
    case.config = DataConfig(**{**vars(case.config), "batch_size": 64})
    with case.open() as source:
        assert source.batches_per_epoch == 1
        assert [len(b.targets) for b in islice(source.train(0), 2)] == [50, 50]


def test_the_fingerprint_follows_content_not_the_seed(case: Case) -> None:
    with case.open() as a, case.open(seed=9) as b:
        assert a.spec.fingerprint == b.spec.fingerprint
        assert len(a.spec.fingerprint) == 64
    case.config = DataConfig(**{**vars(case.config), "limit": 40})
    with case.open() as c:
        assert c.spec.n_train == 40
        assert c.spec.fingerprint != a.spec.fingerprint


@pytest.mark.parametrize(
    ("name", "file"), [("fashion_mnist", "t10k-images-idx3-ubyte"), ("fashion_mnist", "train-labels-idx1-ubyte")]
)
def test_one_other_pixel_or_label_is_another_fingerprint(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_config: Callable[..., DataConfig]
) -> None:
    case = Case(data_config(name, **SETUPS[name](tmp_path, monkeypatch)))
    with case.open() as source:
        before = source.spec.fingerprint
    path = next(tmp_path.rglob(file))
    content = bytearray(path.read_bytes())
    content[-1] = 1 - min(content[-1], 1)
    path.write_bytes(content)
    with case.open() as source:
        assert source.spec.fingerprint != before


def test_cifar10_with_another_pixel_is_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_config: Callable[..., DataConfig]
) -> None:
    found = []
    for seed in (0, 0, 1):
        root = tmp_path / f"{len(found)}"
        root.mkdir()
        case = Case(data_config("cifar10", **write_cifar10(root, monkeypatch, seed)))
        with case.open() as source:
            found.append(source.spec.fingerprint)
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("name", ["synthetic_images", "synthetic_tokens"])
def test_made_up_data_are_drawn_by_no_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_config: Callable[..., DataConfig]
) -> None:
    """A fingerprint stands for one content, whatever the device: torch's generators differ by device type."""
    case = Case(data_config(name, **SETUPS[name](tmp_path, monkeypatch)))
    with Ops() as ops, case.open() as source:
        next(source.train(0))
    assert ops.seen
    assert not {op for op in ops.seen if "rand" in op or "normal" in op or "uniform" in op}


class Ops(TorchDispatchMode):
    """Names of torch's operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


def test_reading_leaves_the_runs_random_numbers_alone(case: Case) -> None:
    with case.open() as source:
        before = torch.get_rng_state()
        list(islice(source.train(0), 3))
        list(source.eval())
        assert torch.equal(torch.get_rng_state(), before)


def test_a_model_of_the_other_kind_is_refused_with_both_names(case: Case) -> None:
    other = WANTED["tokens" if case.kind == "images" else "images"]
    with pytest.raises(DataError) as refused:
        case.entry.open_data(case.config, other, DataContext(0, "cpu"))
    assert "model, data" in str(refused.value)
    assert f"`{case.config.name}`" in str(refused.value)


def test_more_ranks_than_samples_are_refused(case: Case) -> None:
    with pytest.raises(DataError, match="50 training samples for 51 ranks"), case.open(world=51):
        pass


def test_closing_twice_is_harmless(case: Case) -> None:
    with case.open() as source:
        next(source.train(0))
        source.close()
