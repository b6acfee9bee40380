"""Which samples are in which micro-batch: a pure function of (seed, epoch, rank, world).

An epoch's order is that of sorted 64-bit keys from Philox, seeded by `SeedSequence(seed, spawn_key=(purpose, epoch))`.
numpy keeps both streams fixed for ever (NEP 19), so the order outlives versions of numpy.
A global batch is cut first and ranks take their slice of it: with an equal global batch, its samples are the
same for any world size. What is left over at an epoch's end is dropped (every batch has one shape) and differs
each epoch. A set smaller than the global batch is one batch, shared out as evenly as it goes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

# Orders drawn at once of a small set, and samples in them all: between two steps, out of the processor's caches,
# numpy's generators take five times as long as one after another.
MOST_EPOCHS, MOST_DRAWN = 8, 16384

# Distinct first words of the spawn key, so that no two uses of one seed share a stream.
ORDER, SPLIT, AUGMENT, CONTENT = 1, 2, 3, 4


def generator(purpose: int, seed: int, *key: int) -> np.random.Philox:
    """A bit generator of its own for each (purpose, seed, key)."""
    return np.random.Philox(np.random.SeedSequence(seed, spawn_key=(purpose, *key)))


def shuffled(n: int, purpose: int, seed: int, *key: int) -> Indices:
    """The numbers 0 … n-1 in random order.

    Each key carries its number in its lowest bits: sorting keys is several times faster than argsort, and equal
    random parts (43 bits for a million samples) cannot make the order depend on the sort's algorithm.
    """
    bits = np.uint64(max(n - 1, 0).bit_length())
    keys = generator(purpose, seed, *key).random_raw(n) >> bits << bits
    keys |= np.arange(n, dtype=np.uint64)
    keys.sort()
    return (keys & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)


def permutation(seed: int, epoch: int, n: int) -> Indices:
    """The order of the training samples in `epoch`; read-only."""
    together = min(MOST_EPOCHS, max(1, MOST_DRAWN // max(n, 1)))
    return _permutations(seed, epoch // together, together, n)[epoch % together]


@lru_cache(maxsize=2)
def _permutations(seed: int, block: int, together: int, n: int) -> list[Indices]:
    """The orders of `together` epochs, from epoch block · together on."""
    orders = [shuffled(n, ORDER, seed, block * together + i) for i in range(together)]
    for order in orders:
        order.flags.writeable = False
    return orders


def batches_per_epoch(n: int, batch: int, world: int) -> int:
    """Micro-batches of one rank in one pass over n samples; ≥ 1."""
    return max(1, n // (batch * world))


def epoch_rows(seed: int, epoch: int, n: int, batch: int, rank: int, world: int) -> Indices:
    """Sample indices of all of a rank's micro-batches in one epoch.

    Shapes: (batches_per_epoch, samples in a micro-batch of this rank).
    """
    order = permutation(seed, epoch, n)
    count = n // (batch * world)
    rows: Indices
    if count == 0:
        rows = order[n * rank // world : n * (rank + 1) // world].reshape(1, -1)
    else:
        rows = order[: count * batch * world].reshape(count, world, batch)[:, rank]
    return rows


def micro_indices(seed: int, micro: int, n: int, batch: int, rank: int, world: int) -> Indices:
    """Sample indices of micro-batch `micro`, counted from the start of the run over all epochs."""
    epoch, position = divmod(micro, batches_per_epoch(n, batch, world))
    indices: Indices = epoch_rows(seed, epoch, n, batch, rank, world)[position]
    return indices


def rank_span(n: int, rank: int, world: int) -> range:
    """This rank's share of n evaluation samples; the shares of all ranks are disjoint and cover them."""
    return range(n * rank // world, n * (rank + 1) // world)


def stratified_split(labels: NDArray[np.integer], eval_frac: float, seed: int) -> tuple[Indices, Indices]:
    """Training and evaluation indices, each class split alike, in random order.

    Each class gives round(eval_frac · its size) samples to evaluation.
    """
    order = shuffled(len(labels), SPLIT, seed)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        held[members[: round(eval_frac * len(members))]] = True
    return order[~held[order]], order[held[order]]
