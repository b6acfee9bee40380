"""The step of one of several processes, from the trace of a step of one alone. No torch.

DDP: another copy of the gradients lies in buckets (gradient_as_bucket_view=False). FSDP: torch's fully_shard over each
block and the rest, as its calls allocate: source torch/distributed/fsdp/_fully_shard. Parameters are cut along their
first dimension, rounded up; blocks are gathered for their forward, dropped, and gathered again for their backward, the
next one ahead; their gradients are summed in the format that they are kept in, after each micro-batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpt.predict.fsdp_units import shard_bytes, units
from mpt.predict.memory import SAVED
from mpt.predict.spans import ROOT, Span, spans
from mpt.predict.trace import Op, Phase, Storage, Trace

BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * 2**20, 2**20
"""Source: torch.nn.parallel.DistributedDataParallel: bucket_cap_mb, and dist._DEFAULT_FIRST_BUCKET_BYTES."""
GATHERED, REDUCING = "gathered", "reducing"


@dataclass(frozen=True)
class Sharding:
    """What is asked: `name` is none, ddp or fsdp."""

    name: str
    nproc: int

    def __call__(self, trace: Trace) -> Trace:
        """The step of the first process, whose shards are the largest, from that of one alone."""
        if self.name == "none" or self.nproc == 1:
            return trace
        return in_buckets(trace) if self.name == "ddp" else in_shards(trace, self.nproc)


def in_buckets(trace: Trace) -> Trace:
    """As DDP has it."""
    return replace(trace, lasting={**trace.lasting, REDUCING: sum(map(sum, buckets(trace)))})


def buckets(trace: Trace) -> list[list[int]]:
    """Bytes of gradients by bucket, in the order in which gradients are ready; one is full once it reaches its size."""
    sizes = [trace.storages[index].nbytes for index in trace.ready]
    found: list[list[int]] = [[]]
    for size in sizes:
        if sum(found[-1]) >= (BUCKET_BYTES if len(found) > 1 else FIRST_BUCKET_BYTES):
            found.append([])
        found[-1].append(size)
    return found


def in_shards(trace: Trace, n: int) -> Trace:
    """As FSDP has it."""
    made = _Timeline(trace, n)
    lasting = dict(trace.lasting)
    lasting["parameters"] = shard_bytes(trace.parameters, n)
    for name, tensors in trace.kept.items():
        lasting[name] = min(lasting[name], shard_bytes(tensors, n))
    if "snapshot" in lasting:
        lasting["snapshot"] = sum(lasting[name] for name in SAVED)
    events, forward_end = made.events()
    return replace(
        trace,
        ops=tuple(_part(op, n) if op.phase == "update" else op for op in trace.ops),
        storages=tuple(made.storages),
        events=tuple(events),
        forward_end=forward_end,
        lasting=lasting,
        weights={name: -(-size // n) for name, size in trace.weights.items()},
    )


def _part(op: Op, n: int) -> Op:
    """Of an op on weights and what goes with them."""
    return replace(op, bytes_read=-(-op.bytes_read // n), bytes_written=-(-op.bytes_written // n), part=1 / n)


class _Timeline:
    """A trace's events with those of sharding between them."""

    def __init__(self, trace: Trace, n: int) -> None:
        self._trace, self._n = trace, n
        self._units = units(trace)
        self.storages = [self._resized(s) for s in trace.storages]
        self._ready = {
            s.weight: at
            for at, event in enumerate(trace.events)
            if event >= 0 and (s := trace.storages[event]).gradient and s.weight >= 0
        }
        self._phase: Phase = "forward"
        self._root: list[int] = []
        self._inserted: defaultdict[int, list[int]] = defaultdict(list)
        self._gathering = self._reducing = -1  # the buffers of the last gathering and the last sum
        for micro in spans(trace):
            self._forward(micro.forward, micro.backward_from)
            self._backward(micro.backward, micro.backward_from, micro.end, first=micro.number == 0)

    def events(self) -> tuple[list[int], int]:
        """All of them, and where the last forward ends."""
        found: list[int] = []
        forward_end = 0
        for at, event in enumerate((*self._trace.events, None)):
            if at == self._trace.forward_end:
                forward_end = len(found)
            found += self._inserted[at]
            if event is not None:
                found.append(event)
        return found, forward_end

    def _resized(self, s: Storage) -> Storage:
        """Casts of whole weights are what is gathered; whole gradients come with their block; updates are of parts."""
        if s.weight >= 0:
            return replace(s, nbytes=0, gradient=False)
        if s.phase == "update" and (s.gradient or s.nbytes > self._small):
            return replace(s, nbytes=-(-s.nbytes // self._n))
        return s

    @property
    def _small(self) -> int:
        """What an update makes for each weight: norms and counters. Nothing of the weights is smaller."""
        return 8 * len(self._trace.parameters)

    def _make(self, at: int, nbytes: int, held: str, module: str = "", gradient: bool = False) -> int:
        index = len(self.storages)
        self.storages.append(Storage(nbytes, module, self._phase, gradient, -1, held))
        self._inserted[at].append(index)
        return index

    def _free(self, at: int, *indices: int) -> None:
        self._inserted[at] += [~index for index in indices if index >= 0]

    def _gather(self, at: int, block: str) -> int:
        """The buffer with all parts of a block's weights, this process's own cast before."""
        unit = self._units[block]
        cast = self._make(at, unit.cast(self._n), GATHERED)
        buffer = self._make(at, self._n * unit.shard(self._n), GATHERED)
        self._free(at, cast)
        return buffer

    def _whole(self, at: int, block: str) -> list[int]:
        return [self._make(at, nbytes, GATHERED, block) for nbytes in self._units[block].whole]

    def _forward(self, order: Sequence[Span], end: int) -> None:
        """Each block's buffer stays until the next one has its weights; the root keeps its weights for the backward."""
        self._phase = "forward"
        for span in order:
            if span.block not in self._units:
                continue
            buffer = self._gather(span.start, span.block)
            whole = self._whole(span.start, span.block)
            self._free(span.start, self._gathering)
            self._gathering = buffer
            if span.block == ROOT:
                self._root = whole
            else:
                self._free(span.end, *whole)
        self._free(end, self._gathering)
        self._gathering = -1

    def _backward(self, order: Sequence[Span], start: int, end: int, first: bool) -> None:
        """The next block is gathered ahead; the buffer of a sum stays until the next sum."""
        self._phase = "backward"
        blocks = [span for span in order if span.block in self._units and span.block != ROOT]
        ahead = self._gather(start, blocks[0].block) if blocks else -1
        for place, span in enumerate(blocks):
            whole = self._whole(span.start, span.block)
            self._free(span.start, ahead)
            ahead = -1
            if place + 1 < len(blocks):
                ahead = self._gather(span.start, blocks[place + 1].block)
            gradients = self._gradients(span.block, span.start, first)
            self._free(span.end, *whole)
            self._reduce(span.end, span.block, gradients, first)
        if ROOT in self._units:
            gradients = self._gradients(ROOT, start, first)
            self._free(end, *self._root)
            self._reduce(end, ROOT, gradients, first)
        self._free(end, self._reducing)
        self._reducing = -1

    def _gradients(self, block: str, start: int, first: bool) -> list[int]:
        """Whole ones where the trace made them in the first micro-batch, to which the others add; else at the start."""
        unit = self._units[block]
        return [
            self._make(self._ready.get(place, start) if first else start, nbytes, REDUCING, block)
            for place, weight, nbytes in zip(unit.places, unit.weights, unit.whole, strict=True)
            if weight.trained
        ]

    def _reduce(self, at: int, block: str, gradients: list[int], first: bool) -> None:
        """Whole gradients go into the buffer of a sum, from which this process gets its part."""
        self._free(at, self._reducing)
        part = self._units[block].gradients(self._n)
        self._reducing = self._make(at, self._n * part, REDUCING)
        self._free(at, *gradients)
        made = self._make(at, part, "gradients", block, gradient=True)
        if not first:
            self._free(at, made)  # added to the first one
