"""When something that happens every so many updates is due, although the host does not know the update."""

from __future__ import annotations


class Every:
    """Due at the first step whose update reaches the next multiple of `interval` (None or 0: never).

    The update can't be ahead of the last one known plus the steps since: before that step nothing is read.
    """

    def __init__(self, interval: int | None, update: int) -> None:
        self._interval = interval or 0
        self._next = self._after(update)

    def _after(self, update: int) -> int:
        return (update // self._interval + 1) * self._interval if self._interval else 0

    def earliest(self, step: int, update: int) -> int | None:
        """The first step at which it can be due, given that `step` attempts applied `update` changes."""
        return step + max(self._next - update, 1) if self._interval else None

    def due(self, update: int) -> bool:
        """Whether `update` has reached the multiple; asks once for each."""
        if not self._interval or update < self._next:
            return False
        self._next = self._after(update)
        return True
