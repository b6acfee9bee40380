"""A copy of a state in the host's memory, which training may go on without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpt.checkpoint.plain import leaves

_MEMINFO = "/proc/meminfo"
_ROOM = 1.25
"""Free memory that a copy wants, in parts of its size: the serialiser buffers beside it."""


class Snapshots:
    """Makes copies, one at a time: the memory of one is taken again for the next, which saves its page faults."""

    def __init__(self) -> None:
        self._spare: dict[tuple[int, bool], list[torch.UntypedStorage]] = {}

    def take(self, state: Any, *, copied: bool) -> tuple[Any, Callable[[], object]]:
        """The state with every tensor on the CPU, and a function that returns once its values have arrived.

        Tensors that are there already are copied where `copied`, else they are the state's own. Storages that
        several tensors share stay shared; containers are new either way. Nothing waits for the device here.
        The snapshot before this one is overwritten.
        """
        storages: dict[tuple[int, torch.device], torch.UntypedStorage] = {}

        def tensor(source: Tensor) -> Tensor:
            if source.device.type == "cpu" and not copied:
                return source
            storage = source.untyped_storage()
            key = storage.data_ptr(), source.device
            if key not in storages:
                storages[key] = self._copied(storage)
            made = torch.empty(0, dtype=source.dtype)
            return made.set_(storages[key], source.storage_offset(), source.size(), source.stride())

        result = _rebuilt(state, tensor)
        self._spare = {}
        for (_, device), storage in storages.items():
            self._spare.setdefault((storage.nbytes(), device.type == "cuda"), []).append(storage)
        return result, _arrival({device for _, device in storages if device.type == "cuda"})

    def _copied(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """On the CPU; from CUDA into page-locked memory, in the order of the device's stream and without waiting."""
        pinned = storage.device.type == "cuda"
        spare = self._spare.get((storage.nbytes(), pinned))
        if spare:
            made = spare.pop()
        else:
            made = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=pinned).untyped_storage()
        made.copy_(storage, non_blocking=pinned)
        return made


def _rebuilt(value: Any, tensor: Callable[[Tensor], Tensor]) -> Any:
    """The same containers, made anew, with what `tensor` makes of each tensor."""
    if isinstance(value, Tensor):
        return tensor(value.detach())
    if isinstance(value, dict):
        return {k: _rebuilt(v, tensor) for k, v in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_rebuilt(v, tensor) for v in value)
    return value


def on_cpu(state: Any) -> bool:
    """Whether all of the state's tensors lie in the host's memory, so that a snapshot takes as much again."""
    return all(v.device.type == "cpu" for _, v in leaves(state) if isinstance(v, Tensor))


def fits(copy_bytes: int) -> bool:
    """Whether the host has memory for a copy of that size; True where the system does not tell."""
    free = _available_bytes()
    return free is None or free > _ROOM * copy_bytes


def _arrival(devices: set[torch.device]) -> Callable[[], object]:
    events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def arrive() -> None:
        for event in events:
            event.synchronize()

    return arrive


def _available_bytes() -> int | None:
    try:
        with open(_MEMINFO) as file:
            line = next((line for line in file if line.startswith("MemAvailable:")), None)
    except OSError:
        return None
    return int(line.split()[1]) * 1024 if line else None
