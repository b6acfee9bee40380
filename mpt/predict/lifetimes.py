"""When each storage of a step is made and freed, by whom, and of which weight it is a cast or the gradient."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from mpt.predict.operands import Place, spec_of, storage_key
from mpt.predict.trace import Phase, Storage


class Made(NamedTuple):
    """A storage as it came to be; `again`: in a recomputation."""

    nbytes: int
    module: str
    phase: Phase
    again: bool


class Lifetimes:
    """`events` has a storage's index when it is made and its complement when it is freed."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.made: list[Made] = []
        self._index: dict[int, int] = {}
        self._outside: dict[int, int] = {}
        self._gradients: dict[int, int] = {}
        self._casts: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def number(self, parameters: Iterable[Tensor]) -> None:
        """From here on storages tell which of these they are a cast or the gradient of."""
        for place, parameter in enumerate(parameters):
            self._weights[storage_key(parameter)] = self._numbers[id(parameter)] = place

    def is_gradient(self, holder: Tensor) -> None:
        """What its `.grad` lies in is a gradient."""
        if holder.grad is not None:
            self._gradients[self._index.get(storage_key(holder.grad), -1)] = self._numbers.get(id(holder), -1)

    def is_cast(self, result: Tensor, given: Tensor) -> None:
        """`result` is the weight `given` in another format, where that is one."""
        weight = self._weights.get(storage_key(given))
        if weight is not None:
            self._casts[self._index[storage_key(result)]] = weight

    def see(self, x: Tensor, module: str, phase: Phase, again: bool) -> bool:
        """Whether its storage is new; it is followed to its end then."""
        key = storage_key(x)
        if key in self._index:
            return False
        self.events.append(len(self.made))
        self.made.append(Made(x.untyped_storage().nbytes(), module, phase, again))
        self.follow(x, len(self.made) - 1)
        return True

    def follow(self, x: Tensor, index: int) -> None:
        """Its storage is the one of that index, and freed with it."""
        key = storage_key(x)
        self._index[key] = index
        weakref.finalize(x.untyped_storage(), self._freed, key).atexit = False

    def is_weight(self, x: Tensor) -> bool:
        """Whether it lies in one of those that were numbered."""
        return storage_key(x) in self._weights

    def _freed(self, key: int) -> None:
        index = self._index.pop(key, None)
        if index is not None:
            self.events.append(~index)

    def place(self, x: Tensor) -> Place:
        """Where it lies."""
        key = storage_key(x)
        index = self._index.get(key)
        if index is None:
            index = self._outside.setdefault(key, -1 - len(self._outside))
        return Place(index, x.untyped_storage().nbytes(), int(x.storage_offset()), spec_of(x))

    def storages(self) -> tuple[Storage, ...]:
        """All that came to be, in order."""
        of = {**self._casts, **self._gradients}
        return tuple(
            Storage(*made[:3], index in self._gradients, of.get(index, -1), "activations" if made.again else "")
            for index, made in enumerate(self.made)
        )

    def ready(self) -> tuple[int, ...]:
        """Storages of the weights' gradients, as they were complete."""
        return tuple(index for index, weight in self._gradients.items() if index >= 0 and weight >= 0)

    def order(self, forward_end: int) -> tuple[int, ...]:
        """The events; storages that went together are in the order of their making, as autocast's cache has none."""
        found: list[int] = []
        gone: list[int] = []
        for at, event in enumerate(self.events):
            if gone and (event >= 0 or at == forward_end):
                found += sorted(gone, reverse=True)
                gone = []
            (found if event >= 0 else gone).append(event)
        return (*found, *sorted(gone, reverse=True))

    def since(self, made: int, events: int) -> tuple[list[Made], list[int]]:
        """What came after the first so many of both; events count storages from there."""
        shifted = [e - made if e >= 0 else e + made for e in self.events[events:]]
        return self.made[made:], shifted

    def note_again(self, made: list[Made], events: list[int]) -> None:
        """What `since` gave happens once more."""
        first = len(self.made)
        self.made += made
        self.events += [e + first if e >= 0 else e - first for e in events]
