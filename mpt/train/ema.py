"""A float32 exponential moving average of weights and floating buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor


class Held(Protocol):
    """What an average follows: `full` values, `hold` to put others in their place, `stored` all that then changes."""

    def full(self) -> list[Tensor]: ...

    def hold(self, values: Sequence[Tensor]) -> None: ...

    def stored(self) -> list[Tensor]: ...


class Ema:
    """Follows the finest values of the weights, and floating buffers, after each applied update; a skipped one moves
    nothing. In evaluation weights and their masters hold the average, since float32 evaluation takes the masters.
    """

    def __init__(self, weights: Held, buffers: list[Tensor], decay: float) -> None:
        self.decay = decay
        self._weights, self._buffers = weights, buffers
        self.average = [s.detach().float().clone() for s in self._sources()]
        self._weight = torch.zeros((), device=self.average[0].device)

    def update(self, found: Tensor) -> None:
        """average += (1 - decay) · (source - average), by nothing where `found` is 1."""
        torch.mul(1 - found, 1 - self.decay, out=self._weight)
        for average, source in zip(self.average, self._sources(), strict=True):
            average.lerp_(source.float(), self._weight)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Inside, the model computes with the average; afterwards with its own weights again."""
        with torch.no_grad():
            places = [*self._weights.stored(), *self._buffers]
            own = [t.detach().clone() for t in places]
            count = len(self.average) - len(self._buffers)
            self._weights.hold(self.average[:count])
            for buffer, average in zip(self._buffers, self.average[count:], strict=True):
                buffer.copy_(average)
            try:
                yield
            finally:
                for place, value in zip(places, own, strict=True):
                    place.copy_(value)

    @torch.no_grad()
    def start_over(self) -> None:
        """The average is what the weights are now."""
        torch._foreach_copy_(self.average, self._sources())

    def _sources(self) -> list[Tensor]:
        return [*self._weights.full(), *self._buffers]

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        assert len(state["average"]) == len(self.average), "the checkpoint's average is of another model"
        with torch.no_grad():
            for mine, theirs in zip(self.average, state["average"], strict=True):
                mine.copy_(theirs)
