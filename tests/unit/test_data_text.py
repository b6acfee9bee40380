"""The user's own text file: content, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from mpt.config.schema import DataConfig
from mpt.data import shakespeare, text
from mpt.data._context import DataContext
from mpt.errors import DataError
from mpt.types import InputSpec

Config = Callable[..., DataConfig]
HERE = DataContext(0, "cpu")
TEXT = "Größe: 5 µm.\n".encode() * 40


def test_every_byte_of_a_part_is_a_target_once(tmp_path: Path, data_config: Config) -> None:
    (tmp_path / "mine.txt").write_bytes(TEXT)
    config = data_config("text", root=str(tmp_path / "mine.txt"), batch_size=1)
    source = text.open_data(config, InputSpec("tokens", context=9), HERE)
    cut = len(TEXT) - round(0.1 * len(TEXT))
    windows = list(islice(source.train(0), source.batches_per_epoch))
    order = [source.train_indices(i)[0] for i in range(len(windows))]
    seen = torch.cat([batch.targets[0] for _, batch in sorted(zip(order, windows, strict=True), key=lambda p: p[0])])
    assert bytes(seen.tolist()) == TEXT[1:cut][: len(seen)]
    assert cut - 1 - len(seen) < 9
    held = torch.cat([batch.targets.flatten() for batch in source.eval()])
    assert bytes(held.tolist()) == TEXT[cut + 1 :][: len(held)]
    assert source.spec.num_classes == 256


def test_the_packaged_text_as_a_file_gives_the_same_batches(tmp_path: Path, data_config: Config) -> None:
    raw = shakespeare.read()
    (tmp_path / "plays.txt").write_bytes(raw.train.tobytes() + raw.evaluation.tobytes())
    wanted = InputSpec("tokens", context=32)
    own = text.open_data(data_config("text", root=str(tmp_path / "plays.txt")), wanted, HERE)
    packaged = shakespeare.open_data(data_config("shakespeare"), wanted, HERE)
    assert (own.spec.n_train, own.spec.n_eval) == (packaged.spec.n_train, packaged.spec.n_eval)
    for a, b in islice(zip(own.train(0), packaged.train(0), strict=True), 3):
        assert torch.equal(a.inputs, b.inputs)


def test_another_byte_is_another_fingerprint(tmp_path: Path, data_config: Config) -> None:
    prints = []
    for content in (TEXT, TEXT, TEXT[:-1] + b"!"):
        (tmp_path / "mine.txt").write_bytes(content)
        config = data_config("text", root=str(tmp_path / "mine.txt"))
        prints.append(text.open_data(config, InputSpec("tokens", context=9), HERE).spec.fingerprint)
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("name", "told", "hint"),
    [
        (None, "is not set", "data.root=mytext.txt"),
        (".", "is a folder", "give one text file"),
        ("none.txt", "no file", "relative to the current folder"),
        ("empty.txt", "is empty", "give a file with text"),
    ],
)
def test_what_is_no_text_file_is_refused(
    name: str | None, told: str, hint: str, tmp_path: Path, data_config: Config
) -> None:
    (tmp_path / "empty.txt").touch()
    (problem,) = text.check(data_config("text", root=None if name is None else str(tmp_path / name)))
    assert problem.where == "data.root"
    assert told in problem.what
    assert hint in problem.hint


def test_a_text_shorter_than_a_window_is_refused_with_both_lengths(tmp_path: Path, data_config: Config) -> None:
    (tmp_path / "short.txt").write_bytes(TEXT[:100])
    config = data_config("text", root=str(tmp_path / "short.txt"))
    with pytest.raises(DataError, match="90 for training, 10 for evaluation") as refused:
        text.open_data(config, InputSpec("tokens", context=64), HERE)
    assert "give more text" in str(refused.value)


def test_a_file_that_may_not_be_read_is_told(
    tmp_path: Path, data_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_bytes(TEXT)

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(DataError, match="can't be read: Permission denied"):
        text.open_data(data_config("text", root=str(tmp_path / "mine.txt")), InputSpec("tokens", context=9), HERE)
