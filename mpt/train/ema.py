"""A float32 exponential moving average of weights and floating buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Ema:
    """Follows `sources` (masters and buffers) after each applied update; a skipped one moves nothing.

    `targets` are the tensors of the model that belong to `sources`, in their order (working weights to masters);
    both hold the average in evaluation, since float32 evaluation takes the masters.
    """

    def __init__(self, sources: list[Tensor], targets: list[Tensor], decay: float) -> None:
        self.decay = decay
        self._sources = sources
        self._places = [*sources, *(t for t, s in zip(targets, sources, strict=True) if t is not s)]
        self._values = list(range(len(sources))) + [i for i, s in enumerate(sources) if targets[i] is not s]
        self.average = [s.detach().float().clone() for s in sources]
        self._weight = torch.zeros((), device=sources[0].device)

    def update(self, found: Tensor) -> None:
        """average += (1 - decay) · (source - average), by nothing where `found` is 1."""
        torch.mul(1 - found, 1 - self.decay, out=self._weight)
        for average, source in zip(self.average, self._sources, strict=True):
            average.lerp_(source.float(), self._weight)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Inside, the model computes with the average; afterwards with its own weights again."""
        with torch.no_grad():
            own = [t.detach().clone() for t in self._places]
            torch._foreach_copy_(self._places, [self.average[i] for i in self._values])
            try:
                yield
            finally:
                torch._foreach_copy_(self._places, own)

    @torch.no_grad()
    def start_over(self) -> None:
        """The average is what the weights are now."""
        torch._foreach_copy_(self.average, self._sources)

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        assert len(state["average"]) == len(self.average), "the checkpoint's average is of another model"
        with torch.no_grad():
            for mine, theirs in zip(self.average, state["average"], strict=True):
                mine.copy_(theirs)
