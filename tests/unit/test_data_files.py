"""Data sets in torchvision's layout: found where they lie, refused with both ways out, downloaded only when asked."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mpt.config.schema import DataConfig
from mpt.data import cifar10, fashion_mnist
from mpt.data._context import DataContext
from mpt.errors import DataError
from mpt.types import InputSpec

Config = Callable[..., DataConfig]
WANTED, HERE = InputSpec("images"), DataContext(0, "cpu")


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def put(root: Path, packed: bool) -> list[np.ndarray]:
    """A small Fashion-MNIST, gzipped or not."""
    folder = root / fashion_mnist.FOLDER
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    shapes = [((30, 28, 28), 256), ((30,), 10), ((12, 28, 28), 256), ((12,), 10)]
    arrays = [rng.integers(0, top, shape, dtype=np.uint8) for shape, top in shapes]
    for name, array in zip(fashion_mnist.FILES, arrays, strict=True):
        content = idx(array)
        (folder / f"{name}.gz").write_bytes(gzip.compress(content)) if packed else (folder / name).write_bytes(content)
    return arrays


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_is_read_packed_or_not(data_config: Config, tmp_path: Path, packed: bool) -> None:
    arrays = put(tmp_path, packed)
    config = data_config("fashion_mnist", root=str(tmp_path), mean=[0.0], std=[1.0])
    assert fashion_mnist.check(config) == []
    source = fashion_mnist.open_data(config, WANTED, HERE)
    assert (source.spec.n_train, source.spec.n_eval, source.spec.shape) == (30, 12, (1, 28, 28))
    batch = next(source.eval())
    assert np.array_equal((batch.inputs[:, 0] * 255).round().numpy(), arrays[2])
    assert np.array_equal(batch.targets.numpy(), arrays[3])


@pytest.mark.parametrize("fault", ["cut", "other", "empty", "not packed"])
def test_a_damaged_file_is_refused_by_name(data_config: Config, tmp_path: Path, fault: str) -> None:
    put(tmp_path, packed=False)
    file = tmp_path / fashion_mnist.FOLDER / fashion_mnist.FILES[2]
    if fault == "not packed":
        file.unlink()
        file = file.with_name(file.name + ".gz")
    content = {"cut": file.read_bytes()[:-1] if file.is_file() else b"", "other": b"<html>404</html>"}
    file.write_bytes(content.get(fault, b"" if fault == "empty" else b"\x1f\x8b\x08 no gzip"))
    with pytest.raises(DataError) as refused:
        fashion_mnist.open_data(data_config("fashion_mnist", root=str(tmp_path)), WANTED, HERE)
    assert file.name in str(refused.value)
    assert "fetch it again" in str(refused.value)


@pytest.mark.parametrize("entry", [fashion_mnist, cifar10])
def test_missing_files_are_told_with_their_place_and_both_ways_out(
    data_config: Config, tmp_path: Path, entry: object
) -> None:
    name = entry.__name__.rsplit(".", 1)[1]  # type: ignore[attr-defined]
    problems = entry.check(data_config(name, root=str(tmp_path)))  # type: ignore[attr-defined]
    assert len(problems) == 1
    assert str(tmp_path / entry.FOLDER / entry.FILES[0]) in str(problems[0])  # type: ignore[attr-defined]
    assert "data.download=true, or put the files there" in problems[0].hint
    assert entry.check(data_config(name, root=str(tmp_path), download=True)) == []  # type: ignore[attr-defined]
    assert entry.check(data_config(name))[0].where == "data.root"  # type: ignore[attr-defined]


def test_a_download_that_fails_says_what_to_do_by_hand(
    data_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import datasets

    def unreachable(root: Path, download: bool) -> None:
        assert download
        raise RuntimeError("no mirror answers")

    monkeypatch.setattr(datasets, "FashionMNIST", unreachable)
    config = data_config("fashion_mnist", root=str(tmp_path), download=True)
    with pytest.raises(DataError, match=r"data\.download: FashionMNIST can't be fetched .*no mirror answers"):
        fashion_mnist.open_data(config, WANTED, HERE)


def test_cifar10_of_wrong_content_is_refused(data_config: Config, tmp_path: Path) -> None:
    folder = tmp_path / cifar10.FOLDER
    folder.mkdir()
    for name in cifar10.FILES:
        (folder / name).write_bytes(b"not what it should be")
    with pytest.raises(DataError, match=r"data\.download=true"):
        cifar10.open_data(data_config("cifar10", root=str(tmp_path)), WANTED, HERE)


def test_checking_any_data_set_imports_neither_torch_nor_torchvision() -> None:
    code = (
        "import sys\n"
        "from mpt import registry\n"
        "from mpt.config.schema import DataConfig\n"
        "for name in registry.names('data'):\n"
        "    cfg = DataConfig(name, 8, None, '.', False, 2, 'error', None, None, None, None)\n"
        "    registry.load('data', name).check(cfg)\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'torchvision', 'PIL')))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_digits_small_cnn_and_shakespeare_gpt_do_without_torchvision() -> None:
    """Its import takes about a second, a third of the time from a command to the first step."""
    code = (
        "import sys\n"
        "from mpt import registry\n"
        "from mpt.config.schema import DataConfig\n"
        "from mpt.data._context import DataContext\n"
        "for data, model in (('digits', 'small_cnn'), ('digits', 'mlp'), ('shakespeare', 'gpt')):\n"
        "    cfg = DataConfig(data, 8, None, None, False, 0, 'error', None, None, None, None)\n"
        "    entry = registry.load('models', model)\n"
        "    source = registry.load('data', data).open_data(cfg, entry.input_spec({}), DataContext(0, 'cpu'))\n"
        "    registry.load('tasks', 'auto').build({}, source.spec)\n"
        "    entry.build({}, source.spec)(next(source.train(0)).inputs)\n"
        "sys.exit(any(m in sys.modules for m in ('torchvision', 'PIL', 'scipy', 'pandas')))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
