"""Peak memory from a trace: what is alive at each event of a step, and what holds it. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mpt.predict.trace import Storage, Trace
from mpt.types import DeviceFacts

SAVED = ("parameters", "buffers", "masters", "optimizer", "ema")
"""What a checkpoint has a copy of."""
CATEGORIES = (
    *("parameters", "buffers", "masters", "gradients", "gathered", "reducing", "optimizer", "ema", "activations"),
    *("workspace", "batch", "data", "snapshot"),
)
"""What bytes are held by. `snapshot` is the copy that a save in the background writes from; `workspace` is what ops of
the backward and the update made and no longer need. Of several processes: `gathered` are weights of others and the
buffers that they come in, `reducing` gradients on their way to them."""

_BLOCK = 512


def exact(nbytes: int) -> int:
    """Bytes as tensors have them."""
    return nbytes


def blocks(nbytes: int) -> int:
    """Bytes as CUDA's caching allocator counts them: in blocks of 512. Source: torch, c10/cuda/CUDACachingAllocator."""
    return -(-nbytes // _BLOCK) * _BLOCK


@dataclass(frozen=True)
class Memory:
    """The peak of a step, by category at that moment; `phase` is when. `activations` is what the last forward kept,
    by module."""

    peak_bytes: int
    parts: dict[str, int]
    phase: str
    kept: dict[str, int]

    @property
    def kept_bytes(self) -> int:
        return sum(self.kept.values())


def memory(trace: Trace, rounded: Callable[[int], int] = exact) -> Memory:
    """What the trace's step takes."""
    sizes = np.array([rounded(s.nbytes) for s in trace.storages], dtype=np.int64)
    live = curve(trace.events, sizes)
    at = int(live.argmax()) if len(live) else 0
    alive = alive_at(trace.events, at)
    parts = Counter({name: rounded(size) for name, size in trace.lasting.items()})
    for index in alive:
        parts[_category(trace.storages[index])] += int(sizes[index])
    kept: Counter[str] = Counter()
    for index in alive_at(trace.events, trace.forward_end - 1):
        if trace.storages[index].phase == "forward" and not trace.storages[index].held:
            kept[trace.storages[index].module] += int(sizes[index])
    known = {name: parts[name] for name in CATEGORIES if parts[name]}
    phase = trace.storages[trace.events[at]].phase if len(live) and trace.events[at] >= 0 else "forward"
    return Memory(sum(known.values()), known, phase, dict(kept))


def for_device(trace: Trace, device: DeviceFacts) -> Memory:
    """As it is counted there: in blocks, and with the workspace of cuBLAS, on CUDA."""
    if device.type != "cuda":
        return memory(trace)
    found = memory(trace, blocks)
    workspace = found.parts.get("workspace", 0) + cublas_bytes(device)
    parts = {**found.parts, "workspace": workspace}
    return replace(found, peak_bytes=sum(parts.values()), parts=parts)


def cublas_bytes(device: DeviceFacts) -> int:
    """Workspace that torch gives cuBLAS and keeps. Source: torch, CUDABlas.cpp: 32 MiB on Hopper, else 8.125 MiB."""
    return 32 * 2**20 if device.capability is not None and device.capability[0] == 9 else 8320 * 2**10


def curve(events: Sequence[int], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of new storages alive after each event."""
    order = np.array(events, dtype=np.int64)
    made = order >= 0
    index = np.where(made, order, ~order)
    return np.cumsum(np.where(made, sizes[index], -sizes[index])) if len(order) else order


def alive_at(events: Sequence[int], at: int) -> list[int]:
    """Indices of the storages alive after event `at`."""
    alive: dict[int, None] = {}
    for event in events[: at + 1]:
        if event >= 0:
            alive[event] = None
        else:
            alive.pop(~event, None)
    return list(alive)


def _category(storage: Storage) -> str:
    if storage.held or storage.gradient:
        return storage.held or "gradients"
    return "activations" if storage.phase == "forward" else "workspace"


@dataclass(frozen=True)
class Scaling:
    """The peak of a step by its batch: each storage is a straight line in it, from two traces of the same events."""

    events: tuple[int, ...]
    fixed: NDArray[np.float64]
    per_sample: NDArray[np.float64]
    lasting: Callable[[int], float]

    def peak_bytes(self, batch: int) -> int:
        """With a micro-batch of `batch`."""
        sizes = np.rint(self.fixed + self.per_sample * batch).astype(np.int64)
        live = curve(self.events, -(-sizes // _BLOCK) * _BLOCK)
        return int(self.lasting(batch)) + int(live.max(initial=0))

    def largest(self, limit_bytes: int) -> int:
        """The largest batch whose peak is within the limit; 0 where that of one is not."""
        if self.peak_bytes(1) > limit_bytes:
            return 0
        low, high = 1, 2
        while self.peak_bytes(high) <= limit_bytes and high < 2**40:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.peak_bytes(middle) <= limit_bytes else (low, middle)
        return low


def scaling(one: Trace, other: Trace) -> Scaling | None:
    """The line through two traces of different batches; None where their steps are not alike."""
    if one.events != other.events or one.batch == other.batch:
        return None
    a = np.array([s.nbytes for s in one.storages], dtype=np.float64)
    b = np.array([s.nbytes for s in other.storages], dtype=np.float64)
    slope = (b - a) / (other.batch - one.batch)
    batch_slope = one.lasting["batch"] / one.batch
    rest = sum(size for name, size in one.lasting.items() if name != "batch")
    return Scaling(one.events, a - slope * one.batch, slope, lambda batch: rest + batch_slope * batch)
