"""Shifts and mirrors on the device: torchvision's pad, crop and flip, decided by (seed, epoch, sample) alone."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import functional as tv

from mpt.config.compose import compose
from mpt.data._augment import Augment, moved
from mpt.data._context import DataContext
from mpt.data._resident import ResidentSource, Table
from mpt.data.cifar10 import check
from mpt.types import DataSpec

N, SHAPE = 40, (3, 9, 11)
IMAGES = torch.randn(N, *SHAPE, generator=torch.Generator().manual_seed(0))
SPEC = DataSpec("made", "images", SHAPE, 10, N, N, (), "0")
AUGMENT = Augment(shift=4, flip=True)


def by_torchvision(image: Tensor, down: int, right: int, mirrored: int) -> Tensor:
    image = tv.hflip(image) if mirrored else image
    padded = tv.pad(image, [4, 4, 4, 4])
    return tv.crop(padded, 4 - down, 4 - right, SHAPE[1], SHAPE[2])


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_images_are_moved_as_torchvision_pads_crops_and_mirrors(memory: torch.memory_format) -> None:
    draws = torch.from_numpy(AUGMENT.draws(seed=3, epoch=1, n=N))
    got = moved(IMAGES.to(memory_format=memory), draws)
    assert got.is_contiguous(memory_format=memory)
    for image, row, out in zip(IMAGES, draws.tolist(), got, strict=True):
        assert torch.equal(out, by_torchvision(image, *row))


def test_every_shift_and_side_is_as_likely_as_any_other() -> None:
    draws = AUGMENT.draws(seed=0, epoch=0, n=90_000)
    for column in draws[:, 0], draws[:, 1]:
        counts = np.bincount(column + 4, minlength=9)
        assert len(counts) == 9
        assert np.abs(counts - 10_000).max() < 5 * np.sqrt(10_000)
    assert abs(int(draws[:, 2].sum()) - 45_000) < 5 * np.sqrt(90_000 / 4)


def source(seed: int = 0, augment: Augment = AUGMENT) -> ResidentSource:
    table = Table(IMAGES, torch.arange(N))
    return ResidentSource(SPEC, table, table, (8, 8), DataContext(seed, "cpu"), augment=augment)


def test_batches_after_a_resume_are_those_of_the_unbroken_run() -> None:
    whole = source().train(start=0)
    batches = [next(whole) for _ in range(13)]
    for start in (0, 3, 5, 11):
        again = source().batch(start)
        assert torch.equal(again.inputs, batches[start].inputs)
        assert torch.equal(again.targets, batches[start].targets)


@given(batch=st.integers(1, 45), start=st.integers(0, 60), seed=st.integers(0, 2**40), shift=st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_a_source_goes_on_at_any_micro_batch_as_if_it_had_never_stopped(
    batch: int, start: int, seed: int, shift: int
) -> None:
    table = Table(IMAGES, torch.arange(N))
    made = ResidentSource(SPEC, table, table, (batch, 8), DataContext(seed, "cpu"), augment=Augment(shift, True))
    unbroken = islice(made.train(start=0), start, start + 3)
    for micro, (here, there) in enumerate(zip(unbroken, made.train(start), strict=False), start):
        assert torch.equal(here.inputs, there.inputs)
        assert here.targets.tolist() == there.targets.tolist() == made.train_indices(micro)


def test_an_image_moves_otherwise_in_the_next_epoch_and_with_another_seed() -> None:
    first, later, other = (AUGMENT.draws(s, e, N) for s, e in ((0, 0), (0, 1), (1, 0)))
    assert (first != later).any(1).mean() > 0.9
    assert (first != other).any(1).mean() > 0.9


def test_a_shift_that_is_none_is_refused() -> None:
    problems = check(compose(["data=cifar10", "data.shift=-1"]).data)
    assert [(p.where, p.what) for p in problems] == [("data.shift", "got -1, want a number of pixels ≥ 0")]


def test_evaluation_sees_images_as_they_are() -> None:
    assert torch.equal(torch.cat([b.inputs for b in source().eval()]), IMAGES)


def test_without_shift_and_mirror_training_sees_images_as_they_are() -> None:
    batch = source(augment=Augment(0, False)).batch(0)
    assert torch.equal(batch.inputs, IMAGES[batch.targets])
