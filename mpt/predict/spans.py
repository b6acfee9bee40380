"""When a model's blocks run in a traced step. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from mpt.predict.trace import Trace, Turn

ROOT = ""


class Span(NamedTuple):
    """From the event before which a block's first op runs to that before which its last has run."""

    block: str
    start: int
    end: int


@dataclass(frozen=True)
class Micro:
    """One micro-batch: the root's span and those of the blocks, by their starts. A block that is computed again for
    its backward is in `backward` from there on. `backward_from` and `end` are events."""

    number: int
    forward: tuple[Span, ...]
    backward: tuple[Span, ...]
    backward_from: int
    end: int


def owners(blocks: tuple[str, ...]) -> Callable[[str], str]:
    """To which of the blocks a module belongs; ROOT for none."""
    known = set(blocks)

    def owner(module: str) -> str:
        parts = module.split(".")
        names = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return next((name for name in names if name in known), ROOT)

    return owner


def spans(trace: Trace) -> Iterator[Micro]:
    """Each micro-batch of the step."""
    owner = owners(trace.blocks)
    turns = [turn for turn in trace.turns if turn.phase != "update"]
    last = next((turn.at for turn in trace.turns if turn.phase == "update"), len(trace.events))
    whole = [(number, list(group)) for number, group in groupby(turns, key=lambda turn: turn.micro)]
    starts = [group[0].at for _, group in whole]
    for (number, group), end in zip(whole, [*starts[1:], last], strict=True):
        middle = next((turn.at for turn in group if turn.phase == "backward"), end)
        back = next((i for i, turn in enumerate(group) if turn.phase == "backward"), len(group))
        forward = _spans(group[:back], middle, owner)
        root = Span(ROOT, group[0].at, middle)
        yield Micro(number, (root, *forward), tuple(_spans(group[back:], end, owner)), middle, end)


def _spans(turns: list[Turn], end: int, owner: Callable[[str], str]) -> list[Span]:
    """Of each block from its first turn to the turn after its last; without the root."""
    found: dict[str, Span] = {}
    ends = [turn.at for turn in turns[1:]] + [end]
    for turn, after in zip(turns, ends, strict=True):
        block = owner(turn.module)
        if block != ROOT:
            found[block] = Span(block, found[block].start if block in found else turn.at, after)
    return list(found.values())
