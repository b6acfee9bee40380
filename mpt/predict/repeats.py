"""Parts of a step that run again and again on operands of one kind: traced once, and noted as often as they run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mpt.build import Parts
from mpt.formats.operand import Operand
from mpt.formats.quantise import quantise
from mpt.optim._windows import Piece, Windowed
from mpt.predict.kinds import maker_of
from mpt.predict.operands import spec_of
from mpt.predict.tracker import Noted, Tracker


def spare_repeats(parts: Parts, tracker: Tracker) -> None:
    """An optimizer's windows of one kind are traced once, and so is the rounding of operands: a model of 10^10 weights
    has thousands of windows, and nine of ten ops of an emulated step are of rounding."""
    if isinstance(parts.optimizer, Windowed):
        parts.optimizer.update_window = repeated(parts.optimizer.update_window, _kind, tracker)
    if parts.policy.low is not None:
        once = rounded_once(quantise, tracker)
        for layer in parts.policy.low.layers:
            layer.quantise = once


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


def rounded_once(run: Callable[..., Tensor], tracker: Tracker) -> Callable[..., Tensor]:
    """`run` for the first operand of each kind; for others what it did is noted for the module that they are of.

    A run that leaves more than its result behind is never taken for another, nor is one on a weight itself, whose
    copy in another format a trace knows as such.
    """
    known: dict[Hashable, tuple[Noted, int, Callable[[], Tensor]]] = {}

    def once(x: Tensor, op: Operand, amax: Tensor | None = None) -> Tensor:
        key = spec_of(x), op, None if amax is None else spec_of(amax)
        if key in known and not tracker.lifetimes.is_weight(x):
            noted, place, make = known[key]
            first, out = tracker.lengths()[1], make()
            tracker.note_here(noted)
            tracker.lifetimes.follow(out, first + place)
            return out
        before = tracker.lengths()
        out = run(x, op, amax)
        noted = tracker.since(before)
        left = {e for e in noted.events if e >= 0} - {~e for e in noted.events if e < 0}
        if len(left) == 1 and isinstance(out, FakeTensor):
            known[key] = noted, left.pop(), maker_of(out)
        return out

    return once


def _kind(pieces: list[Piece], grads: list[Tensor | None], *_: object) -> Hashable:
    """Lengths, ways of storing and layouts of a window's pieces."""
    return tuple((p.stop - p.start, type(p.weight), *map(type, p.moments), _layout(grads[p.index])) for p in pieces)


def _layout(grad: Tensor | None) -> Hashable:
    """Images' weights whole: where theirs and their gradients' layouts differ, all of a gradient is copied."""
    if grad is None:
        return None
    return grad.dtype, (grad.shape, grad.stride()) if grad.dim() > 3 or not grad.is_contiguous() else ()
