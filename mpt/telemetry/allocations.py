"""Bytes that torch's allocator of the CPU gives in one pass, by torch's profiler: compiled code's too."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._C._profiler import _EventType

from mpt.telemetry.profile import profiler

_UNSEEN = "mpt: not followed"
_LIBRARY = "aten::"
_COMPOSITE = "CompositeImplicitAutograd"
_C10 = Path(torch.__file__).parent / "lib" / "libc10.so"
_ERRORS = 2
"""Level of torch's C++ logger above warnings. Source: torch, c10/util/logging_is_not_google_glog.h."""


class AllocationMeter:
    """Follows each block from its making until it is freed.

    `peak_bytes` is known once it was left. Not counted: blocks from before, what other threads take, and what a kernel
    of torch's takes and gives back (workspace), as StorageMeter does not see it.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._profiler = profiler(cuda=False, memory=True)
        self._quiet = _without_warnings()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What comes to be inside is not followed."""
        with torch.profiler.record_function(_UNSEEN):
            yield

    def __enter__(self) -> AllocationMeter:
        self._quiet.__enter__()
        self._profiler.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profiler.stop()
        self._quiet.__exit__(*error)
        blocks = _blocks(self._profiler.profiler.kineto_results.experimental_event_tree())
        self.peak_bytes = _peak(_in_order(blocks))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """torch's allocator would warn, past Python, of blocks from before that are freed meanwhile; none counts."""
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(_C10)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # named otherwise on this system: the warning is seen, and right
        yield
        return
    before, level.value = level.value, max(level.value, _ERRORS)
    try:
        yield
    finally:
        level.value = before


class _Block(NamedTuple):
    """Given, or with fewer than 0 bytes taken back. Units: ns."""

    at: int
    address: int
    size: int


def _blocks(events: Iterable[Any]) -> Iterator[_Block]:
    """Of these events and those inside them; of a kernel of torch's those that outlive it, and what it gives back."""
    for event in events:
        if event.tag == _EventType.Allocation:
            yield _Block(event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size)
        elif event.name.startswith(_LIBRARY) and not _is_composite(event.name):
            yield from _outliving(_in_order(_blocks(event.children)))
        elif event.name != _UNSEEN:
            yield from _blocks(event.children)


@cache
def _is_composite(name: str) -> bool:
    """Whether it is nothing but calls of other ops, as a GRU is: dispatch modes see those, each with its results."""
    packet = getattr(torch.ops.aten, name.removeprefix(_LIBRARY), None)
    forms = [] if packet is None else [getattr(packet, form).name() for form in packet.overloads() if "out" not in form]
    known = [form for form in forms if torch._C._dispatch_has_kernel(form)]
    return bool(known) and all(torch._C._dispatch_has_kernel_for_dispatch_key(form, _COMPOSITE) for form in known)


def _outliving(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """Without those that are given and taken back among them."""
    own: dict[int, _Block] = {}
    for block in blocks:
        if block.size > 0:
            own[block.address] = block
        elif own.pop(block.address, None) is None:
            yield block
    yield from own.values()


def _in_order(blocks: Iterable[_Block]) -> list[_Block]:
    return sorted(blocks, key=lambda block: block.at)


def _peak(blocks: Iterable[_Block]) -> int:
    live: dict[int, int] = {}
    held = peak = 0
    for _, address, size in blocks:
        if size > 0:
            live[address] = size
            held += size
            peak = max(peak, held)
        else:
            held -= live.pop(address, 0)
    return peak
