"""Bytes that torch's allocator of the CPU gives in one pass, by torch's profiler: compiled code's too."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _EventType

from mpt.telemetry.profile import profiler

_UNSEEN = "mpt: not followed"
_C10 = Path(torch.__file__).parent / "lib" / "libc10.so"
_ERRORS = 2
"""Level of torch's C++ logger above warnings. Source: torch, c10/util/logging_is_not_google_glog.h."""


class AllocationMeter:
    """Follows each block from its making until it is freed; kernels' workspace is among them.

    `peak_bytes` is known once it was left. Blocks from before are not counted, nor what other threads take.
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
        self.peak_bytes = _peak(sorted(blocks, key=lambda block: block[0]))


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


def _blocks(events: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """When, where, and how many bytes: fewer than 0 where they are given back. Units: ns."""
    for event in events:
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size
        if event.name != _UNSEEN:
            yield from _blocks(event.children)


def _peak(blocks: Iterable[tuple[int, int, int]]) -> int:
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
