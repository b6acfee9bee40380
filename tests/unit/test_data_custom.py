"""Data of the user's own: arrays and torch data sets, and what is said of those that do not fit."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from mpt.config.schema import DataConfig
from mpt.data import _feed
from mpt.data._context import DataContext
from mpt.data._given import given_arrays, given_datasets, open_arrays, open_datasets
from mpt.data.custom import check
from mpt.errors import DataError, ExitCode, RunFault
from mpt.types import InputSpec

Config = Callable[..., DataConfig]
HERE = DataContext(0, "cpu")
IMAGES, TOKENS = InputSpec("images"), InputSpec("tokens", context=6)


def pair(n: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3


class Noisy(Dataset[Any]):
    """Samples with random numbers of all three libraries in them."""

    def __init__(self, n: int, bad: int | None = None) -> None:
        self.n, self.bad = n, bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index == self.bad:
            raise KeyError("lost")
        return np.full((3, 4, 5), np.random.rand() + float(torch.rand(())) + index, np.float32), index % 3


class Text(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(6) + index, torch.arange(1, 7) + index


def arrays(cfg: DataConfig, result: object, wanted: InputSpec = IMAGES) -> Any:
    return open_arrays(cfg, wanted, HERE, given_arrays(result, "m:f"))


def datasets(cfg: DataConfig, result: object, wanted: InputSpec = IMAGES) -> Any:
    given = given_datasets(result, "m:f")
    assert given is not None
    return open_datasets(cfg, wanted, HERE, given)


def test_floating_images_are_taken_as_they_are(data_config: Config) -> None:
    x, y = pair(10, 3, 4, 5)
    source = arrays(data_config("custom", batch_size=4), {"train": (x, y), "eval": (x, y)})
    assert torch.equal(torch.cat([b.inputs for b in source.eval()]), x)
    assert source.spec.shape == (3, 4, 5)
    assert source.spec.num_classes == 3


def test_images_of_bytes_are_scaled_to_one(data_config: Config) -> None:
    x = np.arange(2 * 16, dtype=np.uint8).reshape(2, 1, 4, 4) * 8
    source = arrays(data_config("custom"), {"train": (x, [0, 1]), "eval": (x, [0, 1])})
    assert torch.equal(next(source.eval()).inputs, torch.from_numpy(x).float() / 255)


def test_token_arrays_are_windows_with_their_own_targets(data_config: Config) -> None:
    ids = torch.arange(60).view(10, 6) % 9
    result = {"train": (ids, ids + 1), "eval": (ids, ids + 1), "classes": 50}
    source = arrays(data_config("custom", batch_size=4), result, TOKENS)
    assert (source.spec.kind, source.spec.num_classes, source.spec.shape) == ("tokens", 50, (6,))
    batch = next(source.train(0))
    assert torch.equal(batch.targets, batch.inputs + 1)


def test_windows_longer_than_the_models_context_are_refused(data_config: Config) -> None:
    ids = torch.zeros(4, 7, dtype=torch.int64)
    with pytest.raises(DataError, match=r"windows of 7 tokens, but the model takes 6"):
        arrays(data_config("custom"), {"train": (ids, ids), "eval": (ids, ids)}, TOKENS)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (5, "returned a int"),
        ({"train": 1}, "a mapping with the keys train"),
        ({"train": 1, "eval": 2}, "want a pair"),
        ({"train": pair(4, 3, 8, 8), "eval": (torch.rand(3, 3, 8, 8), torch.zeros(2))}, "3 inputs and 2 targets"),
        ({"train": (torch.ones(4, 7, dtype=torch.uint8), [0] * 4), "eval": pair(4, 7)}, "floating features B,F"),
        ({"train": pair(4, 7), "eval": pair(4, 1, 7, 1)}, "floating features B,F"),
        ({"train": (torch.rand(2, 3, 8), torch.arange(2)), "eval": pair(2, 3, 8, 8)}, "want images B,C,H,W"),
        ({"train": pair(4, 3, 8, 8), "eval": pair(4, 3, 8, 8), "classes": 2}, "targets go from 0 to 2"),
        ({"train": (torch.rand(1, 3, 8, 8), torch.tensor([-1])), "eval": pair(4, 3, 8, 8)}, "targets go from -1"),
        ({"train": pair(4, 3, 8, 8), "eval": pair(4, 3, 8, 8), "classes": "many"}, "`classes` is 'many'"),
        ({"train": (["a"], [1]), "eval": (["a"], [1])}, "can't become tensors"),
    ],
)
def test_what_does_not_fit_is_told(result: object, said: str) -> None:
    with pytest.raises(DataError) as refused:
        given_arrays(result, "m:f")
    assert said in str(refused.value)


def test_a_data_sets_own_randomness_follows_seed_epoch_and_sample(data_config: Config) -> None:
    result = {"train": Noisy(20), "eval": Noisy(5), "classes": 3}
    seen = []
    for workers, start in ((0, 0), (2, 0), (2, 3)):
        source = datasets(data_config("custom", batch_size=5, workers=workers), result)
        assert source.spec.shape == (3, 4, 5)
        seen.append(torch.stack([b.inputs for b in islice(source.train(start), 8 - start)]))
        source.close()
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0][3:], seen[2])
    assert len(set(seen[0][:, :, 0, 0, 0].flatten().tolist())) == 40


def test_data_sets_of_tokens_are_streamed(data_config: Config) -> None:
    source = datasets(data_config("custom", batch_size=5), {"train": Text(), "eval": Text(), "classes": 20}, TOKENS)
    batch = next(source.train(0))
    assert batch.inputs.dtype == torch.int64
    assert torch.equal(batch.targets, batch.inputs + 1)
    assert source.spec.num_classes == 20


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_raises_stops_the_run_with_its_number(data_config: Config, workers: int) -> None:
    result = {"train": Noisy(6, bad=4), "eval": Noisy(5), "classes": 3}
    source = datasets(data_config("custom", batch_size=6, workers=workers), result)
    with pytest.raises(RunFault, match=r"sample 4 of data\.path: can't be read: KeyError: 'lost'"):
        next(source.train(0))
    source.close()


def test_samples_of_different_shapes_stop_the_run_with_both(data_config: Config) -> None:
    class Ragged(Noisy):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            return torch.zeros(3, 4 + index % 2, 5), 0

    source = datasets(data_config("custom", batch_size=6), {"train": Ragged(6), "eval": Noisy(5), "classes": 3})
    with pytest.raises(RunFault, match=r"\(4, 5, 3\) and \(5, 5, 3\)"):
        next(source.train(0))


def test_labels_out_of_range_are_told_with_the_sample(data_config: Config) -> None:
    source = datasets(data_config("custom", batch_size=6), {"train": Noisy(6), "eval": Noisy(5), "classes": 2})
    with pytest.raises(RunFault, match="targets must be whole numbers from 0 to 1, got 2"):
        next(source.train(0))


def test_data_sets_need_their_classes_and_an_order() -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    with pytest.raises(DataError, match="`classes` is None"):
        given_datasets({"train": Noisy(3), "eval": Noisy(3)}, "m:f")
    with pytest.raises(DataError, match="`train` is an IterableDataset"):
        given_datasets({"train": Endless(), "eval": Noisy(3), "classes": 3}, "m:f")


def test_a_first_sample_that_is_no_sample_is_refused(data_config: Config) -> None:
    with pytest.raises(DataError, match=r"sample 0 of data\.path can't be read: KeyError"):
        datasets(data_config("custom"), {"train": Noisy(3, bad=0), "eval": Noisy(3), "classes": 3})


def test_a_path_that_names_no_callable_is_found_at_once(data_config: Config) -> None:
    for path in (None, "", "module.py"):
        assert [p.where for p in check(data_config("custom", options={"path": path}))] == ["data.path"]
    assert check(data_config("custom", options={"path": "m:f"})) == []


class Sleeper(Dataset[Any]):
    """Number 7 is never read to its end."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            forever()
        return torch.zeros(1, 8, 8), index % 10


def forever() -> None:
    time.sleep(600)


def test_i9_a_worker_that_hangs_is_a_fault_that_tells_its_samples_and_where_it_is(
    data_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_feed, "TIMEOUT_S", 2.0)
    config = data_config("custom", batch_size=4, workers=2)
    source = datasets(config, {"train": Sleeper(), "eval": Sleeper(), "classes": 10})
    try:
        with pytest.raises(RunFault, match="gave nothing for 2 s") as fault:
            list(islice(source.train(0), 4))
    finally:
        source.close()
    assert fault.value.exit_code == ExitCode.FAULT
    assert "sample 7 of data.path" in str(fault.value)
    assert "in forever" in str(fault.value)
    assert not [p for p in multiprocessing.active_children() if p.is_alive()]


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        (torch.tensor([0.0, 1.0]), r"`train` has targets of float32, want whole numbers.*\n.*targets.long\(\)"),
        (torch.tensor([False, True]), "targets of bool"),
        (torch.eye(2), r"targets of shape \(2, 2\), want one class number for each image\n.*argmax"),
        (torch.eye(2).long(), r"targets of shape \(2, 2\).*\n.*argmax"),
        (np.array(["cat", "dog"]), r"`train` can't become tensors: <U3 is text.*return_inverse=True"),
    ],
)
def test_targets_that_are_no_class_numbers_are_told_by_kind(targets: Any, told: str, data_config: Config) -> None:
    given = (torch.zeros(2, 1, 8, 8), targets)
    with pytest.raises(DataError, match=told):
        arrays(data_config("custom"), {"train": given, "eval": given})


def test_complex_images_are_refused(data_config: Config) -> None:
    given = (torch.zeros(2, 1, 8, 8, dtype=torch.complex64), torch.tensor([0, 1]))
    with pytest.raises(DataError, match="inputs of complex64"):
        arrays(data_config("custom"), {"train": given, "eval": given})


def test_other_byte_orders_graphs_and_read_only_arrays_are_read_as_they_mean(data_config: Config) -> None:
    x, y = pair(6, 1, 8, 8)
    swapped = x.numpy().astype(">f4"), y.numpy().astype(">i8")
    swapped[0].flags.writeable = False
    cfg = data_config("custom")
    for given in (swapped, (x.clone().requires_grad_(), y)):
        source = arrays(cfg, {"train": given, "eval": given})
        got, want = source.batch(0), arrays(cfg, {"train": (x, y), "eval": (x, y)}).batch(0)
        assert torch.equal(got.inputs, want.inputs)
        assert torch.equal(got.targets, want.targets)


def test_what_is_seldom_meant_is_told(data_config: Config) -> None:
    def notes(x: torch.Tensor, y: torch.Tensor) -> str:
        return "\n".join(arrays(data_config("custom"), {"train": (x, y), "eval": (x, y)}).notes)

    two = torch.tensor([0, 1])
    assert notes(torch.rand(2, 3, 8, 8), two) == ""
    assert "images are 8×9×3, read as channels × height × width" in notes(torch.rand(2, 8, 9, 3), two)
    deep = torch.arange(2 * 64, dtype=torch.int32).reshape(2, 1, 8, 8) * 100
    assert "images of int32 from 0 to 12,700 are taken as they are: only bytes are scaled" in notes(deep, two)
    assert notes(deep.to(torch.uint8), two) == ""
    assert "classes without training samples: 1, 2" in notes(torch.rand(2, 3, 8, 8), torch.tensor([0, 3]))


class Mixed(Dataset[Any]):
    """Samples of two kinds."""

    def __init__(self, *kinds: torch.Tensor) -> None:
        self.kinds = kinds

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.kinds[index == 5], 0


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        (torch.zeros(1, 8, 9), r"different shapes: \(8, [89], 1\) and \(8, [89], 1\)"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), "different formats: (float32|uint8) and (float32|uint8)"),
    ],
)
def test_samples_that_do_not_lie_side_by_side_are_named(odd: torch.Tensor, told: str, data_config: Config) -> None:
    mixed = Mixed(torch.zeros(1, 8, 8), odd)
    source = datasets(data_config("custom", batch_size=8), {"train": mixed, "eval": mixed, "classes": 1})
    with pytest.raises(RunFault, match=rf"samples (\d and 5|5 and \d): .*{told}"):
        next(source.train(0))


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        (torch.zeros(1, 8, 9), "its inputs are 1×8×9 of float32, those of sample 0 are 1×8×8 of float32"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), "its inputs are 1×8×8 of uint8"),
    ],
)
def test_a_check_finds_samples_that_do_not_lie_beside_the_others(
    odd: torch.Tensor, told: str, data_config: Config
) -> None:
    mixed = Mixed(torch.zeros(1, 8, 8), odd)
    source = datasets(data_config("custom"), {"train": mixed, "eval": mixed, "classes": 1})
    faults = [(look.name, look.wrong) for look in source.examine() if look.wrong]
    assert [name for name, _ in faults] == ["sample 5 of data.path"] * 2
    assert all(told in str(fault) for _, fault in faults)
