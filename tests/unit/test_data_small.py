"""Small sets that live on the device: content, normalisation, layout, and what a step costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mpt.config.schema import DataConfig
from mpt.data import _open, digits, shakespeare, synthetic_images, synthetic_tokens
from mpt.data._context import DataContext
from mpt.data._resident import GATHER_BYTES
from mpt.errors import ConfigError, DataError
from mpt.types import InputSpec

Config = Callable[..., DataConfig]
IMAGES = InputSpec("images")
HERE = DataContext(0, "cpu")


def all_pixels(source: Any) -> torch.Tensor:
    return torch.cat([b.inputs for b in islice(source.train(0), source.batches_per_epoch)])


def test_digits_are_the_1797_images_with_every_class_in_both_parts() -> None:
    raw = digits.read()
    assert [len(labels) for _, labels in (raw.train, raw.evaluation)] == [1438, 359]
    counts = [np.bincount(labels, minlength=10) for _, labels in (raw.train, raw.evaluation)]
    assert (counts[0] + counts[1]).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.array_equal(counts[1], np.round(0.2 * (counts[0] + counts[1])))
    both = np.concatenate([raw.train[0], raw.evaluation[0]])
    assert both.max() == 16
    assert len({image.tobytes() for image in both}) == 1797


def test_digits_constants_are_those_of_the_training_part() -> None:
    images = digits.read().train[0] / 16.0
    assert abs(images.mean() - digits.MEAN) < 5e-6
    assert abs(images.std() - digits.STD) < 5e-6


def test_the_test_set_does_not_depend_on_the_seed(data_config: Config) -> None:
    parts = [
        torch.cat([b.inputs for b in digits.open_data(data_config("digits"), IMAGES, DataContext(s, "cpu")).eval()])
        for s in (0, 1)
    ]
    assert torch.equal(*parts)


def test_pixels_are_scaled_then_normalised(data_config: Config) -> None:
    source = digits.open_data(data_config("digits", batch_size=359), IMAGES, HERE)
    raw = torch.from_numpy(digits.read().evaluation[0]).permute(0, 3, 1, 2).double()
    expected = (raw / 16 - digits.MEAN) / digits.STD
    measured = torch.cat([b.inputs for b in source.eval()]).double()
    # Three roundings of 2^-24, on values below 3.
    assert (measured - expected).abs().max() <= 3 * 3 * 2.0**-24


def test_given_mean_and_deviation_are_used(data_config: Config) -> None:
    own = all_pixels(digits.open_data(data_config("digits", mean=[0.0], std=[1.0]), IMAGES, HERE))
    assert own.min() == 0
    assert own.max() == 1


def test_statistics_of_the_wrong_length_are_refused(data_config: Config) -> None:
    with pytest.raises(DataError, match=r"data\.mean: got 2 numbers for 1 channels"):
        digits.open_data(data_config("digits", mean=[0.0, 0.0]), IMAGES, HERE)


def test_small_grey_images_become_large_colour_ones_where_a_model_wants_that(data_config: Config) -> None:
    config = data_config("digits", limit=16)
    source = digits.open_data(config, InputSpec("images", channels=3, min_size=32), HERE)
    assert source.spec.shape == (3, 32, 32)
    x = next(source.train(0)).inputs
    assert torch.equal(x[:, 0], x[:, 2])
    native = next(digits.open_data(config, IMAGES, HERE).train(0)).inputs
    assert torch.equal(x[:, :1], F.interpolate(native, size=(32, 32), mode="bilinear", antialias=True))


def test_a_size_that_a_model_does_not_take_is_refused(data_config: Config) -> None:
    with pytest.raises(DataError, match=r"data\.image_size: got 16, but the model takes at least 32"):
        digits.open_data(data_config("digits", image_size=16), InputSpec("images", min_size=32), HERE)
    with pytest.raises(DataError, match=r"data\.image_size: got 64, but the model takes 224 only"):
        digits.open_data(data_config("digits", image_size=64), InputSpec("images", size=224), HERE)


def test_channels_that_can_not_be_converted_are_refused(data_config: Config) -> None:
    with pytest.raises(DataError, match="has 1 channels, but the model takes 4"):
        digits.open_data(data_config("digits"), InputSpec("images", channels=4), HERE)


def test_a_set_too_large_after_resizing_is_resized_batch_by_batch(
    data_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, config = InputSpec("images", channels=3, min_size=24), data_config("digits", limit=40)
    whole = digits.open_data(config, wanted, DataContext(0, "cpu", channels_last=True))
    monkeypatch.setattr(_open, "RESIZED_BYTES", 1000)
    late = digits.open_data(config, wanted, DataContext(0, "cpu", channels_last=True))
    assert late.resident()[0].numel() < whole.resident()[0].numel()
    for a, b in islice(zip(whole.train(0), late.train(0), strict=True), 5):
        assert torch.equal(a.inputs, b.inputs)
        assert b.inputs.is_contiguous(memory_format=torch.channels_last)


class Counting(TorchDispatchMode):
    """Counts the ops that are dispatched inside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def epochs(source: Any, n: int) -> Iterator[Any]:
    return islice(source.train(0), n * source.batches_per_epoch)


@pytest.mark.parametrize("name", ["digits", "shakespeare"])
def test_a_step_gathers_at_most_twice_copies_nothing_and_reads_nothing(data_config: Config, name: str) -> None:
    entry, wanted = {"digits": (digits, IMAGES), "shakespeare": (shakespeare, InputSpec("tokens", context=64))}[name]
    source = entry.open_data(data_config(name, batch_size=64), wanted, DataContext(0, "cpu", channels_last=True))
    steps = 2 * source.batches_per_epoch
    with Counting() as counting:
        assert sum(1 for _ in epochs(source, 2)) == steps
    assert 0 < counting.calls["index_select"] <= 2 * steps
    # What an epoch may do once: its order is made on the host and uploaded.
    moves = sum(counting.calls[op] for op in ("copy_", "_to_copy", "clone", "lift_fresh"))
    assert moves <= (4 if name == "digits" else 2 * steps)
    assert counting.calls["_local_scalar_dense"] == 0
    assert counting.calls.total() <= 4 * steps


def test_batches_gathered_together_keep_the_allocators_alignment(data_config: Config) -> None:
    """Kernels may round differently on other alignments; a resume must see the same."""
    whole = digits.open_data(data_config("digits", batch_size=7), IMAGES, HERE)
    starts = [b.inputs.data_ptr() % 64 for b in islice(whole.train(0), 20)]
    resumed = [b.inputs.data_ptr() % 64 for b in islice(whole.train(13), 7)]
    assert resumed == starts[13:]


def test_gathering_ahead_takes_a_bounded_amount_of_memory(data_config: Config) -> None:
    source = digits.open_data(data_config("digits", batch_size=64), IMAGES, HERE)
    batch = next(source.train(0))
    assert batch.inputs.untyped_storage().nbytes() <= GATHER_BYTES


def bigram_nats(train: np.ndarray, evaluation: np.ndarray) -> float:
    """Cross entropy of the best add-a bigram model over the bytes that occur."""
    used = np.unique(np.concatenate([train, evaluation]))
    where = np.zeros(256, dtype=np.int64)
    where[used] = np.arange(len(used))
    counts = np.zeros((len(used), len(used)))
    np.add.at(counts, (where[train[:-1]], where[train[1:]]), 1)

    def nats(a: float) -> float:
        p = (counts + a) / (counts + a).sum(1, keepdims=True)
        return float(-np.log(p[where[evaluation[:-1]], where[evaluation[1:]]]).mean())

    return min(nats(a) for a in (0.01, 0.1, 1.0))


def test_the_bigram_baseline_of_shakespeare_is_the_one_that_is_told() -> None:
    raw = shakespeare.read()
    assert bigram_nats(raw.train, raw.evaluation) == pytest.approx(shakespeare.BIGRAM_NATS, abs=5e-4)


def test_shakespeare_is_text_without_a_word_of_those_who_typed_it() -> None:
    raw = shakespeare.read()
    text = np.concatenate([raw.train, raw.evaluation]).tobytes().decode("ascii")
    assert 1_000_000 < len(text) < 1_100_000
    assert "To be, or not to be" in text
    assert not any(word in text.lower() for word in ("gutenberg", "etext", "e-text", "copyright", "http", "www."))


def test_each_byte_of_a_part_is_a_target_once_but_for_a_rest(data_config: Config) -> None:
    raw = shakespeare.read()
    config = data_config("shakespeare", batch_size=64)
    source = shakespeare.open_data(config, InputSpec("tokens", context=100), HERE)
    batches = list(source.eval())
    inputs, targets = (torch.cat([b[i] for b in batches]).flatten() for i in (0, 1))
    n = len(targets)
    assert len(raw.evaluation) - 1 - n < 100
    assert np.array_equal(targets.numpy(), raw.evaluation[1 : n + 1])
    assert np.array_equal(inputs.numpy(), raw.evaluation[:n])


def test_a_context_longer_than_the_text_is_refused(data_config: Config) -> None:
    with pytest.raises(DataError, match="no window of 2,000,000 tokens"):
        shakespeare.open_data(data_config("shakespeare"), InputSpec("tokens", context=2_000_000), HERE)


@pytest.mark.parametrize("bad", [0, -3, "many"])
def test_synthetic_counts_must_be_positive(data_config: Config, bad: object) -> None:
    assert [p.where for p in synthetic_images.check(data_config("synthetic_images", options={"classes": bad}))] == [
        "data.classes"
    ]
    assert [p.where for p in synthetic_tokens.check(data_config("synthetic_tokens", options={"n": bad}))] == ["data.n"]


def test_synthetic_data_say_that_they_are(data_config: Config) -> None:
    config = data_config("synthetic_images", image_size=8, options={"n": 4})
    assert synthetic_images.open_data(config, IMAGES, HERE).spec.synthetic
    config = data_config("synthetic_tokens", options={"n": 4})
    assert synthetic_tokens.open_data(config, InputSpec("tokens", context=8), HERE).spec.synthetic


def test_an_unknown_option_of_a_data_set_is_refused_by_its_key(data_config: Config) -> None:
    config = data_config("synthetic_images", options={"clases": 4})
    with pytest.raises(ConfigError, match=r"data\.clases: no such option\n  hint: did you mean `classes`"):
        synthetic_images.open_data(config, IMAGES, HERE)
