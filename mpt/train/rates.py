"""The schedule on the device: looked up by a device counter of updates, so that a skipped update repeats its rate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 4096
"""Rates held at a time, or all of a shorter run. A table of a million updates costs 0.4 s and more."""


class Pace:
    """The schedule, times a factor below the update `until`: slower for a while after a rollback."""

    def __init__(self, rate_at: Callable[[int], float]) -> None:
        self._rate_at = rate_at
        self.factor, self.until = 1.0, 0

    def __call__(self, update: int) -> float:
        rate = self._rate_at(update)
        return rate * self.factor if update < self.until else rate


class Rates:
    """`now` is the 0-dim float32 rate of the next attempt; `advance` moves it on by an applied update.

    Updates may run ahead of what the host knows by `ahead` at most; `refill` is called when it knows more. `steps` is
    the run's length.
    """

    def __init__(self, rate_at: Callable[[int], float], ahead: int, steps: int, device: torch.device) -> None:
        self._rate_at, self._ahead = rate_at, ahead
        self._size = max(min(BLOCK, steps), 2 * ahead)
        self._first = 0
        self._table = torch.empty(self._size + 1, device=device)
        self._index = torch.zeros(1, dtype=torch.int64, device=device)
        self._zero = torch.zeros((), device=device)  # made once: torch makes a tensor of a number in each call
        self._now = torch.empty(1, device=device)
        self.now = self._now.view(())
        self._fill(0)

    def advance(self, found: Tensor) -> None:
        """The next rate, or the same one again where `found` is 1."""
        self._index.add_(found.eq(self._zero))
        torch.index_select(self._table, 0, self._index, out=self._now)

    def refill(self, update: int) -> None:
        """The table begins at `update`, which the host has read, if the old one might run out."""
        if update + self._ahead - self._first >= self._size:
            self._index.sub_(update - self._first)
            self._fill(update)

    def start_at(self, update: int) -> None:
        """The next attempt is the one after `update` applied changes."""
        self._index.zero_()
        self._fill(update)

    def _fill(self, first: int) -> None:
        self._first = first
        rates = [self._rate_at(first + i) for i in range(self._size + 1)]
        self._table.copy_(torch.tensor(rates, dtype=torch.float32))
        torch.index_select(self._table, 0, self._index, out=self._now)
