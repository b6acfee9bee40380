"""The order of samples: reproducible, a partition, and the same for any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpt.data._order import (
    ORDER,
    batches_per_epoch,
    epoch_rows,
    micro_indices,
    permutation,
    rank_span,
    shuffled,
    stratified_split,
)


def test_an_epochs_order_is_fixed_for_ever():
    """Recorded values: a change would make every old run unrepeatable."""
    assert permutation(0, 0, 10).tolist() == [4, 6, 3, 5, 2, 9, 1, 0, 7, 8]
    assert permutation(2**63 - 1, 7, 10).tolist() == [6, 8, 5, 4, 9, 0, 7, 2, 3, 1]


@given(n=st.integers(0, 3000), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=50, deadline=None)
def test_a_shuffle_is_a_permutation(n, seed):
    assert np.array_equal(np.sort(shuffled(n, 1, seed, 3)), np.arange(n))


@pytest.mark.parametrize("n", [1, 7, 1438, 5000, 16384, 20000])
def test_orders_drawn_together_are_those_drawn_one_by_one(n):
    epochs = [0, 1, 2, 7, 8, 9, 30, 3]
    assert all(np.array_equal(permutation(3, e, n), shuffled(n, ORDER, 3, e)) for e in epochs)


def test_orders_differ_between_epochs_seeds_and_purposes():
    orders = [shuffled(100, p, s, e).tobytes() for p in (1, 2) for s in (0, 1) for e in (0, 1)]
    assert len(set(orders)) == len(orders)


def test_each_place_of_a_shuffle_is_uniform():
    """Chi-square of which number comes first over 8,000 epochs of 8; 24.3 is passed by chance once in 1,000."""
    firsts = [int(shuffled(8, 1, 0, epoch)[0]) for epoch in range(8000)]
    chi2 = ((np.bincount(firsts, minlength=8) - 1000.0) ** 2 / 1000.0).sum()
    assert chi2 < 24.3


@given(
    n=st.integers(1, 500),
    batch=st.integers(1, 40),
    world=st.integers(1, 6),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_ranks_share_an_epoch_without_overlap(n, batch, world, seed, epoch):
    rows = [epoch_rows(seed, epoch, n, batch, rank, world) for rank in range(world)]
    assert all(len(r) == batches_per_epoch(n, batch, world) for r in rows)
    used = np.concatenate([r.ravel() for r in rows])
    assert len(np.unique(used)) == len(used)
    expected = n // (batch * world) * batch * world or n
    assert len(used) == expected


def test_a_global_batch_holds_the_same_samples_for_any_number_of_ranks():
    n, size = 103, 24
    for micro in range(9):
        batches = {
            world: {i for rank in range(world) for i in micro_indices(5, micro, n, size // world, rank, world).tolist()}
            for world in (1, 2, 3, 4, 8)
        }
        assert all(b == batches[1] for b in batches.values())
        assert len(batches[1]) == size


def test_what_an_epoch_leaves_out_differs_between_epochs():
    left_out = [set(range(100)) - set(epoch_rows(0, e, 100, 30, 0, 1).ravel().tolist()) for e in range(4)]
    assert all(len(s) == 10 for s in left_out)
    assert len({frozenset(s) for s in left_out}) == 4


def test_a_set_smaller_than_the_batch_is_one_batch():
    assert sorted(micro_indices(0, 3, 5, 64, 0, 1).tolist()) == [0, 1, 2, 3, 4]
    shares = [micro_indices(0, 3, 5, 64, rank, 2).tolist() for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == [0, 1, 2, 3, 4]
    assert abs(len(shares[0]) - len(shares[1])) <= 1


def test_the_cached_order_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        permutation(0, 0, 4)[0] = 1


@given(n=st.integers(0, 100), world=st.integers(1, 9))
def test_evaluation_shares_cover_each_sample_once(n, world):
    assert [i for rank in range(world) for i in rank_span(n, rank, world)] == list(range(n))


def test_a_stratified_split_gives_each_class_its_share():
    labels = np.repeat(np.arange(4), [10, 20, 30, 5])
    train, held = stratified_split(labels, 0.2, 0)
    assert np.bincount(labels[held]).tolist() == [2, 4, 6, 1]
    assert sorted([*train, *held]) == list(range(65))
