"""What FSDP gathers at once, and how it cuts weights among processes. No torch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mpt.predict.spans import owners
from mpt.predict.trace import Kept, Trace


def shard_elements(shape: Sequence[int], n: int) -> int:
    """Of the first of n processes; torch pads those of the others to as many."""
    return math.prod(shape) if not shape else -(-shape[0] // n) * math.prod(shape[1:])


def shard_bytes(tensors: Iterable[Kept], n: int) -> int:
    """Of tensors that are cut along their first dimension; single numbers are not."""
    return sum(shard_elements(t.shape, n) * t.itemsize for t in tensors)


@dataclass
class Unit:
    """What is gathered at once: the weights of a block, with the bytes of an element that they are computed with."""

    weights: list[Kept] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """In Trace.parameters."""

    @property
    def whole(self) -> list[int]:
        """Bytes of each weight as it computes."""
        return [math.prod(w.shape) * size for w, size in zip(self.weights, self.computed, strict=True)]

    def shard(self, n: int) -> int:
        """Bytes of this process's part, as it is sent to the others."""
        return sum(shard_elements(w.shape, n) * size for w, size in zip(self.weights, self.computed, strict=True))

    def cast(self, n: int) -> int:
        """Bytes of the part that is cast before it is sent, 0 where none is."""
        pairs = zip(self.weights, self.computed, strict=True)
        return self.shard(n) if any(w.itemsize != size for w, size in pairs) else 0

    def gradients(self, n: int) -> int:
        """Bytes of this process's part of the sums."""
        return shard_bytes((w for w in self.weights if w.trained), n)


def units(trace: Trace) -> dict[str, Unit]:
    """By block; ROOT has the rest."""
    computed = [w.itemsize for w in trace.parameters]
    for s in trace.storages:
        if s.weight >= 0 and not s.gradient:
            computed[s.weight] = s.nbytes // max(1, math.prod(trace.parameters[s.weight].shape))
    found: defaultdict[str, Unit] = defaultdict(Unit)
    owner = owners(trace.blocks)
    for place, weight in enumerate(trace.parameters):
        unit = found[owner(weight.module)]
        unit.weights.append(weight)
        unit.computed.append(computed[place])
        unit.places.append(place)
    return dict(found)
