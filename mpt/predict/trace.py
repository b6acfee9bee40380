"""A step as data: its ops with what they compute and move, and when each storage comes and goes. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Phase = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True)
class Op:
    """One call below autograd.

    `flops` are the model's, `executed` what a kernel really does (half of a causal attention, its scores again in
    the backward; what is computed again is no more of the model); `form` is the format of a product's operands, empty
    for what is no product. An op with `kernel` False only makes a view. `signature` numbers its kind among those of
    equal operands. `micro` is the micro-batch. `part` is the share of its call that runs, of several processes.
    """

    name: str
    module: str
    phase: Phase
    flops: int
    executed: int
    form: str
    bytes_read: int
    bytes_written: int
    kernel: bool
    tensors: int
    signature: int
    micro: int
    part: float = 1.0

    @property
    def moved(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True)
class Storage:
    """One that came to be in the step; `gradient` where it became the gradient of a weight.

    `weight` is the place in Trace.parameters of the one that it is the gradient of, or in another format, -1 else.
    `held` is its category where that does not follow from the phase.
    """

    nbytes: int
    module: str
    phase: Phase
    gradient: bool
    weight: int = -1
    held: str = ""


class Turn(NamedTuple):
    """From event `at` on ops belong to that module, phase and micro-batch."""

    at: int
    module: str
    phase: Phase
    micro: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that outlasts the step. Units: bytes of an element. A parameter has its first module."""

    shape: tuple[int, ...]
    itemsize: int
    module: str = ""
    trained: bool = False


@dataclass(frozen=True)
class Trace:
    """One attempt at an update of `micro` micro-batches of `batch` samples each.

    `events` has a storage's index when it is made and its complement when it is freed; `forward_end` is where in
    them the last forward ended. `lasting` has the bytes that are there before and after, by category.
    """

    batch: int
    micro: int
    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    events: tuple[int, ...]
    forward_end: int
    lasting: dict[str, int]
    weights: dict[str, int] = field(default_factory=dict)
    """Bytes of weights, masters, gradients and optimizer state of each module."""
    calls: tuple[Any, ...] = ()
    """By signature: the op and what its operands were."""
    flow: tuple[Any, ...] = ()
    """By op: where its operands and results lie; empty where an op was noted without being seen."""
    uncounted: frozenset[str] = frozenset()
    turns: tuple[Turn, ...] = ()
    ready: tuple[int, ...] = ()
    """Storages of gradients of Trace.parameters in the order in which they were complete."""
    parameters: tuple[Kept, ...] = ()
    kept: dict[str, tuple[Kept, ...]] = field(default_factory=dict)
    """Tensors of masters, optimizer and average, by category."""
    blocks: tuple[str, ...] = ()
    """The model's repeated blocks, as recompute.blocks finds them."""
