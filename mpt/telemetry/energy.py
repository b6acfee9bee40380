"""Energy that the device used, where a counter of it can be read: NVML on NVIDIA GPUs, RAPL on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mpt.types import DeviceFacts, Unmeasured

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Joules since it was made, and those of the run before it was resumed, added up at each `poll`.

    `method` says of what. A run polls at log points, far more often than a RAPL counter begins anew (half an hour and
    more).
    """

    def __init__(self, facts: DeviceFacts, root: Path = POWERCAP) -> None:
        self._counters, self.method = _counters(facts, root)
        self._last = [counter() for counter, _ in self._counters]
        self._joules = 0.0

    def poll(self) -> None:
        """Count what was spent since the last poll."""
        for i, (counter, wraps_at) in enumerate(self._counters):
            now = counter()
            spent = now - self._last[i]
            self._joules += spent if spent >= 0 else spent + wraps_at
            self._last[i] = now

    def summary(self) -> dict[str, Any]:
        """summary.json's `energy`; joules are null with the reason where nothing could be read."""
        if isinstance(self.method, Unmeasured):
            return {"joules": self.method}
        return {"joules": self._joules, "method": self.method}

    def state_dict(self) -> dict[str, float]:
        return {"joules": self._joules}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._joules = state["joules"]


_Counter = tuple[Callable[[], float], float]
"""Reads joules since some time; and at how many it begins anew."""


def _counters(facts: DeviceFacts, root: Path) -> tuple[list[_Counter], str | Unmeasured]:
    if facts.type == "cuda":
        return _nvml(facts.index)
    if facts.type == "cpu":
        packages = list(_rapl(root))
        if packages:
            return packages, "RAPL: whole CPU packages, what else they ran included, without memory"
        return [], Unmeasured(f"no readable energy counter below {root} (RAPL; most systems let root alone read it)")
    return [], Unmeasured(f"no energy counter is known for {facts.type}")


def _rapl(root: Path) -> Iterator[_Counter]:
    """The counter of each CPU package that this user may read. Source: the kernel's powercap documentation."""
    for folder in sorted(root.glob("intel-rapl:*")):  # AMD's stand under that name too
        if folder.name.count(":") != 1:
            continue  # a part of a package
        try:
            wraps_at = int((folder / "max_energy_range_uj").read_text()) / 1e6
            (folder / "energy_uj").read_text()
        except (OSError, ValueError):
            continue
        yield partial(_joules, folder / "energy_uj"), wraps_at


def _joules(path: Path) -> float:
    return int(path.read_text()) / 1e6


def _nvml(index: int) -> tuple[list[_Counter], str | Unmeasured]:
    """The GPU's own counter, since its driver was loaded. Source: NVML's nvmlDeviceGetTotalEnergyConsumption."""
    if find_spec("pynvml") is None:
        return [], Unmeasured("pynvml is not installed: pip install nvidia-ml-py")
    import pynvml
    import torch

    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError as error:
        return [], Unmeasured(f"NVML has no energy counter here: {error}")
    return [
        (lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, 0.0)
    ], "NVML: the whole GPU, without the host"
