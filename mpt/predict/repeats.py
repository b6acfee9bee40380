"""Parts of a step that run again and again on operands of one kind: traced once, and noted as often as they run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from mpt.optim._windows import Piece, Windowed
from mpt.predict.tracker import Noted, Tracker


def repeat_windows(optimizer: object, tracker: Tracker) -> None:
    """An optimizer's windows of one kind are traced once: a model of 10^10 weights has thousands of them."""
    if isinstance(optimizer, Windowed):
        optimizer.update_window = repeated(optimizer.update_window, _kind, tracker)


def repeated(run: Callable[..., None], kind: Callable[..., Hashable], tracker: Tracker) -> Callable[..., None]:
    """`run` for the first arguments of each kind; for others what it did is noted once more.

    A run that leaves a storage behind, or drops one of others, is never taken for another.
    """
    known: dict[Hashable, Noted | None] = {}

    def again(*args: Any) -> None:
        key = kind(*args)
        noted = known.get(key)
        if noted is not None:
            tracker.note_again(noted)
            return
        before = tracker.lengths()
        run(*args)
        noted = tracker.since(before)
        made, gone = {e for e in noted.events if e >= 0}, {~e for e in noted.events if e < 0}
        known[key] = noted if made == gone else None

    return again


def _kind(pieces: list[Piece], grads: list[Tensor | None], *_: object) -> Hashable:
    """Lengths, ways of storing and layouts of a window's pieces."""
    return tuple((p.stop - p.start, type(p.weight), *map(type, p.moments), _layout(grads[p.index])) for p in pieces)


def _layout(grad: Tensor | None) -> Hashable:
    """Images' weights whole: where theirs and their gradients' layouts differ, all of a gradient is copied."""
    if grad is None:
        return None
    return grad.dtype, (grad.shape, grad.stride()) if grad.dim() > 3 or not grad.is_contiguous() else ()
