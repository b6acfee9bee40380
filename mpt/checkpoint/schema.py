"""Versions of what a checkpoint holds; older ones become the present one when they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

State = dict[str, Any]

SCHEMA = "mpt.checkpoint/2"


def _from_1(state: State) -> State:
    """The second names what it averaged, which versions wrote it, epoch and next rate, and counts joules."""
    return {**state, "trained": None, "versions": None, "place": None, "energy": state.get("energy", {"joules": 0.0})}


OLDER: dict[str, tuple[str, Callable[[State], State]]] = {"mpt.checkpoint/1": ("mpt.checkpoint/2", _from_1)}
"""By schema, the next one and what makes it."""


def migrated(state: State, schema: str) -> State:
    """A state of the present schema, from one that `readable` takes."""
    while schema != SCHEMA:
        schema, step = OLDER[schema]
        state = step(state)
    return state


def readable(schema: object) -> bool:
    """Whether this version can load it."""
    return schema == SCHEMA or schema in OLDER
