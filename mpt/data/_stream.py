"""Data sets that are too large for memory: read by workers, in the order that _order.py gives.

What a sample looks like depends on (seed, epoch, index) alone, so neither the number of workers nor a resume
changes a pixel. A sample that can't be read travels back as a note, not as an exception, which would lose its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpt.data._context import DataContext, Look
from mpt.data._feed import FeedSettings, make_feed
from mpt.data._order import batches_per_epoch, epoch_rows, micro_indices, rank_span
from mpt.data._samples import Finished, Key, Looks, Packed, Reader, Samples, pack
from mpt.data._upload import Upload
from mpt.errors import Problem, RunFault
from mpt.types import Batch, DataSpec

# Samples that a worker looks at between two messages.
LOOKED_AT = 16


T = TypeVar("T")


def _as_it_is(made: T) -> T:
    return made


class StreamSource:
    """Batches read by workers; `finish` turns stacked inputs on the device into what the model takes.

    Threads that read for a CPU finish batches themselves: the training thread would share its kernels between as many
    threads as there are cores, all of them busy with reading, and wait for the last.
    """

    def __init__(
        self,
        spec: DataSpec,
        train: Reader,
        evaluation: Reader,
        batch: tuple[int, int],
        context: DataContext,
        settings: FeedSettings,
        on_error: str,
        finish: Callable[[Tensor], Tensor],
        notes: list[str],
    ) -> None:
        self.spec, self.notes = spec, notes
        self.skipped: list[str] = []
        self.converted: dict[str, int] = {}
        self._converted: dict[str, NDArray[np.bool_]] = {}
        self._n, self._n_eval = len(train), len(evaluation)
        self._batch, self._eval_batch = batch
        self._context, self._settings = context, settings
        on_cpu = torch.device(context.device).type == "cpu"
        self._pack, self._finish = (Finished(finish), _as_it_is) if settings.threads and on_cpu else (pack, finish)
        self._skip = on_error == "skip"
        self._train = Samples(train, context.seed, replace=self._skip)
        # In evaluation a sample is never replaced: it would count twice.
        self._eval_samples = Samples(evaluation, context.seed, replace=False)
        self._eval = make_feed(self._eval_samples, self._eval_keys, self._pack, settings, _named(evaluation))
        self._feeds = [self._eval]
        self.batches_per_epoch = batches_per_epoch(self._n, self._batch, context.world)
        self._upload = Upload(context.device)

    def train(self, start: int) -> Iterator[Batch]:
        """Endless micro-batches of this rank, from micro-batch `start` of the run."""
        keys, name = partial(self._train_keys, start), _named(self._train.reader)
        feed = make_feed(self._train, keys, self._pack, self._settings, name)
        self._feeds.append(feed)
        try:
            for packed in feed:
                yield self._required(packed)
        finally:
            feed.close()

    def batch(self, micro: int) -> Batch:
        """Micro-batch `micro` as `train(micro)` gives it first, read in this process without workers."""
        keys = next(self._train_keys(micro))
        return self._required(self._pack([self._train[key] for key in keys]))

    def eval(self) -> Iterator[Batch]:
        """This rank's share of the evaluation samples, each once, unreadable ones left out where they are skipped.

        Raises: RunFault when none of them can be read.
        """
        delivered, last = 0, None
        for packed in self._eval:
            batch = self._deliver(packed, of_eval=True)
            if batch is not None:
                delivered += 1
                yield batch
            last = packed
        if last is not None and not delivered:
            raise _nothing_readable(last, "no evaluation sample can be read", "data.root")

    def train_indices(self, micro: int) -> list[int]:
        """The training samples in this rank's micro-batch `micro` after unreadable ones were replaced."""
        c = self._context
        found: list[int] = micro_indices(c.seed, micro, self._n, self._batch, c.rank, c.world).tolist()
        if not self.skipped:
            return found
        lost = set(self.skipped)
        taken = (next((i for i in self._train.candidates(i) if self._named(i) not in lost), None) for i in found)
        return [i for i in taken if i is not None]

    def _named(self, index: int) -> str:
        return self._train.reader.name(index)

    def sample_names(self, indices: Sequence[int]) -> list[str]:
        """Files of these training samples, or what their reader calls them."""
        return [self._named(i) for i in indices]

    def _count(self, changed: tuple[tuple[int, str], ...], first: int) -> None:
        """Each sample counts once, however many epochs there are."""
        for index, how in changed:
            seen = self._converted.setdefault(how, np.zeros(self._n + self._n_eval, np.bool_))
            self.converted[how] = self.converted.get(how, 0) + (not seen[first + index])
            seen[first + index] = True

    def examine(self) -> Iterator[Look]:
        """Every sample of both parts, read in full by workers, training first."""
        for part, reader in (("train", self._train.reader), ("eval", self._eval_samples.reader)):
            keys = [range(i, min(i + LOOKED_AT, len(reader))) for i in range(0, len(reader), LOOKED_AT)]
            feed = make_feed(Looks(reader, part), partial(map, list, keys), _as_it_is, self._settings, reader.name)
            try:
                for looks in feed:
                    yield from looks
            finally:
                feed.close()

    def resident(self) -> list[Tensor]:
        """None: batches come and go."""
        return []

    def close(self) -> None:
        """Ends all workers."""
        for feed in self._feeds:
            feed.close()

    def _train_keys(self, start: int) -> Iterator[list[Key]]:
        c = self._context
        first, position = divmod(start, self.batches_per_epoch)
        for epoch in count(first):
            rows = epoch_rows(c.seed, epoch, self._n, self._batch, c.rank, c.world)
            for row in rows[position:]:
                yield [(epoch, index) for index in row.tolist()]
            position = 0

    def _eval_keys(self) -> Iterator[list[Key]]:
        span = rank_span(self._n_eval, self._context.rank, self._context.world)
        for start in range(0, len(span), self._eval_batch):
            yield [(0, index) for index in span[start : start + self._eval_batch]]

    def _required(self, packed: Packed) -> Batch:
        batch = self._deliver(packed)
        if batch is None:
            raise _nothing_readable(packed, "a whole batch can't be read", "data")
        return batch

    def _deliver(self, packed: Packed, *, of_eval: bool = False) -> Batch | None:
        if packed.faults and not self._skip:
            name, why = packed.faults[0]
            hint = "repair or remove it, or use data.on_error=skip"
            raise RunFault(Problem(name, f"can't be read: {why}", hint))
        # One file may have been met several times in a batch, as what would have replaced its neighbours.
        self.skipped += [name for name in dict.fromkeys(n for n, _ in packed.faults) if name not in self.skipped]
        self._count(packed.changed, self._n if of_eval else 0)
        if packed.inputs is None or packed.targets is None:
            return None
        inputs, targets = self._upload(packed.inputs, packed.targets)
        return Batch(self._finish(inputs), targets)


def _named(reader: Reader) -> Callable[[Key], str]:
    return lambda key: reader.name(key[1])


def _nothing_readable(packed: Packed, what: str, where: str) -> RunFault:
    names = ", ".join(name for name, _ in packed.faults[:3])
    why = packed.faults[-1][1] if packed.faults else "no samples"
    return RunFault(Problem(where, f"{what} ({names}, …): {why}", "check the files below data.root"))
