"""Which products belong to ops that a policy keeps in float32: those that they issue, and those of their backward."""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mpt.precision.ops import KINDS, PROMOTE

_NAMES = frozenset(name.partition(".")[0] for names in (*KINDS.values(), PROMOTE) for name in names)


class Kept(TorchFunctionMode):
    """Sees calls of such ops while entered: below autograd a determinant's gradient is nothing but `mm` and `mul`.

    Autograd's numbers of the nodes that a call made are the call's; they are of the thread that entered.
    """

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __enter__(self) -> Any:
        self._thread = threading.get_ident()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") not in _NAMES or threading.get_ident() != self._thread:
            return func(*args, **(kwargs or {}))
        start = _sequence_nr()
        self._depth += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._depth -= 1
            self._starts.append(start)
            self._ends.append(_sequence_nr())

    def owns(self, node: Any) -> bool:
        """Whether an op that runs now, in backward under `node`, is part of such a call or of its gradient."""
        if self._depth or node is None:
            return self._depth > 0
        number = node._sequence_nr()
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]


def _sequence_nr() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
