"""Memory of a run: peak, and its split, by the device's allocator or from the tensors themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from mpt.telemetry.allocations import AllocationMeter
from mpt.telemetry.storages import StorageMeter, distinct_bytes
from mpt.types import Unmeasured

Bytes = int | Unmeasured
W = TypeVar("W")
A = TypeVar("A")

GROUPS = ("params", "buffers", "grads", "optimizer", "ema", "data")
"""What lasts beyond a step: working weights; buffers; gradients of the working weights; master copies and
moments; the averaged weights; data resident on the device. A tensor in two groups counts in the first."""

_NOT_SEEN = Unmeasured("no pass was observed")
_ALLOCATOR = "CUDA's allocator: the largest sum of live blocks since the run began"
_TENSORS = (
    "tensors: exact sizes of what lasts and of a batch, plus the largest sum of storages alive in one observed step; "
    "kernels' own workspace is only in rss_peak_bytes"
)
_BLOCKS = (
    "blocks: exact sizes of what lasts and of a batch, plus the largest sum of blocks that torch's allocator gave in "
    "one profiled step; workspace of torch's own kernels is only in rss_peak_bytes"
)
_IN_KERNELS = Unmeasured("the model is compiled: what its forward keeps can't be told from what it works with")
_NOT_STEPPED = Unmeasured("no compiled step was observed")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak, by what holds them.

    `activations_bytes` is what a forward left alive for its backward. `optimizer_bytes` has master copies and
    moments. `rss_peak_bytes` is the process's largest resident memory, libraries included. `snapshot_bytes` is the
    largest copy that a save in the background held beside steps; on a CPU it is part of the peak. `method` says
    how `peak_bytes` was had.
    """

    peak_bytes: Bytes
    params_bytes: Bytes
    grads_bytes: Bytes
    optimizer_bytes: Bytes
    activations_bytes: Bytes
    buffers_bytes: Bytes
    ema_bytes: Bytes
    data_bytes: Bytes
    batch_bytes: Bytes
    rss_peak_bytes: Bytes
    snapshot_bytes: int
    method: str


OBSERVED_STEP = 2
"""Which step of a process is observed: by the second, optimizers have made their state."""


@dataclass
class Observed:
    """What one forward and backward took beyond what was there before, and the batch they were given; and a step."""

    batch_bytes: Bytes = field(default=_NOT_SEEN)
    peak_bytes: Bytes = field(default=_NOT_SEEN)
    step_bytes: int | None = None
    activations_bytes: Bytes = field(default=_NOT_SEEN)


class MemoryMeter:
    """Peaks since `start`; costs nothing in a step but in the one that is observed."""

    def __init__(self, device: str | torch.device, compiled: bool = False) -> None:
        """`compiled`: passes that are observed run eagerly, steps do not."""
        self._device, self._compiled = torch.device(device), compiled
        self._observed = Observed()
        self._live: Callable[[], int] = lambda: 0
        self._steps = 0

    def start(self) -> None:
        """Peaks count from here, so that an earlier job of this process is not in them."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        _reset_rss_peak()

    @contextmanager
    def observed(self, *batch: Tensor) -> Iterator[None]:
        """Around one forward and backward of `batch`, with gradients None before; `forward_done` comes in between."""
        self._observed.batch_bytes = distinct_bytes({"batch": batch})["batch"]
        if self._device.type == "cuda":
            before = torch.cuda.memory_allocated(self._device)
            self._live = lambda: torch.cuda.memory_allocated(self._device) - before
            yield
            return
        meter = StorageMeter()
        self._live = lambda: meter.live_bytes
        with meter:
            yield
        self._observed.peak_bytes = meter.peak_bytes

    def forward_done(self) -> None:
        """The forward is over: what is alive now is kept for the backward."""
        self._observed.activations_bytes = self._live()

    def step(self, window: W, attempt: Callable[[W], A]) -> A:
        """attempt(window); that of OBSERVED_STEP is followed, but for batches as they are fetched.

        On CUDA the allocator follows every one.
        """
        self._steps += 1
        if self._steps != OBSERVED_STEP or self._device.type == "cuda":
            return attempt(window)
        with AllocationMeter() if self._compiled else StorageMeter() as meter:
            result = attempt(_Unseen(window, meter))  # type: ignore[arg-type]
        self._observed.step_bytes = meter.peak_bytes
        return result

    def now_bytes(self) -> int | None:
        """What a log line shows: the allocator's peak on CUDA, the process's resident memory elsewhere."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _rss_bytes()

    def memory(self, groups: Mapping[str, Iterable[Tensor]], snapshot_bytes: int = 0) -> Memory:
        """The split, from the tensors of each of GROUPS as they are at the end of a step.

        Raises: AssertionError for a group that is none of GROUPS.
        """
        assert set(groups) <= set(GROUPS), f"groups {sorted(groups)}, want some of {GROUPS}"
        sizes = distinct_bytes({name: groups.get(name, ()) for name in GROUPS})
        cuda = self._device.type == "cuda"
        return Memory(
            peak_bytes=torch.cuda.max_memory_allocated(self._device) if cuda else self._peak(sizes, snapshot_bytes),
            activations_bytes=_IN_KERNELS if self._compiled else self._observed.activations_bytes,
            batch_bytes=self._observed.batch_bytes,
            rss_peak_bytes=_rss_peak_bytes(),
            snapshot_bytes=snapshot_bytes,
            method=_ALLOCATOR if cuda else _BLOCKS if self._compiled else _TENSORS,
            **{f"{name}_bytes": size for name, size in sizes.items()},
        )

    def _peak(self, sizes: Mapping[str, int], snapshot_bytes: int) -> Bytes:
        """Lasting tensors but gradients, which the observed pass and step made, the batch, their peak, and a copy."""
        seen, batch = self._observed, self._observed.batch_bytes
        peak = seen.peak_bytes if not self._compiled else _NOT_STEPPED if seen.step_bytes is None else 0
        if isinstance(peak, Unmeasured) or isinstance(batch, Unmeasured):
            return peak
        lasting = sum(size for name, size in sizes.items() if name != "grads")
        return max(peak, seen.step_bytes or 0) + batch + snapshot_bytes + lasting


class _Unseen:
    """A window whose batches no meter counts: they are counted apart."""

    def __init__(self, window: Any, meter: StorageMeter | AllocationMeter) -> None:
        self._window, self._meter = window, meter

    def __len__(self) -> int:
        return len(self._window)

    def __iter__(self) -> Iterator[Any]:
        fetched = iter(self._window)
        while True:
            with self._meter.paused():
                batch = next(fetched, None)
            if batch is None:
                return
            yield batch
            del batch


def _status_bytes(key: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)


def _rss_peak_bytes() -> Bytes:
    peak = _status_bytes("VmHWM:")
    return Unmeasured("this system has no /proc/self/status") if peak is None else peak


def _rss_bytes() -> int | None:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _reset_rss_peak() -> None:
    """VmHWM starts again from what is resident now (Linux; elsewhere nothing happens)."""
    try:
        _CLEAR.write_text("5")
    except OSError:  # no such file, or a container that does not allow it: the peak then counts from the start
        return
