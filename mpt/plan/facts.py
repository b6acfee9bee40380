"""Facts about a device of this machine; the one place that asks torch which devices there are."""

from __future__ import annotations

import importlib.metadata
import os
import re

from mpt.config.gpus import GPUS
from mpt.errors import ConfigError, Problem
from mpt.precision.low.hardware import dotted
from mpt.precision.low.recipes import KNOWN_TORCHAO
from mpt.record.cpu import cpu_info
from mpt.types import DeviceFacts

_WANTED = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def facts_of(device: str) -> DeviceFacts:
    """As `probe`, and for a GPU that is known by name (`b200`) and need not be there, what is known of it.

    Its torch is this machine's; the torchao that mpt knows can be installed there, whatever is here.
    Raises: ConfigError as `probe` does.
    """
    if device not in GPUS:
        return probe(device)
    import torch

    gpu = GPUS[device]
    return DeviceFacts(
        "cuda",
        gpu.name,
        str(torch.__version__),
        capability=gpu.capability,
        memory_bytes=int(gpu.memory_gb * 1e9),
        torchao=dotted(KNOWN_TORCHAO),
    )


def probe(device: str) -> DeviceFacts:
    """Facts of `auto` (cuda, else mps, else cpu), `cpu`, `mps`, `cuda` or `cuda:N`.

    Raises: ConfigError with what exists when the device does not.
    """
    if device in GPUS:
        hint = f"mpt plan device={device} tells what would run there; on such a machine it is device=cuda"
        raise ConfigError(Problem("device", f"got `{device}`, a name that only plans know", hint))
    if not _WANTED.fullmatch(device):
        raise ConfigError(Problem("device", f"got `{device}`, want auto, cpu, cuda, cuda:N or mps", _existing()))
    kind, _, index = device.partition(":")
    if kind == "cuda" or (kind == "auto" and _cuda_count() > 0):
        return _cuda(device, int(index or 0))
    if kind == "mps" or (kind == "auto" and _has_mps()):
        return _mps()
    return _cpu()


def _cpu() -> DeviceFacts:
    import torch

    info = cpu_info()
    return DeviceFacts("cpu", info.model, str(torch.__version__), memory_bytes=_machine_bytes(), features=info.flags)


def _cuda(device: str, index: int) -> DeviceFacts:
    import torch

    found = _cuda_count()
    if index >= found:
        raise ConfigError(Problem("device", f"got `{device}`, {_why_no_cuda(found)}", _existing()))
    facts = torch.cuda.get_device_properties(index)
    return DeviceFacts(
        "cuda",
        facts.name,
        str(torch.__version__),
        capability=(facts.major, facts.minor),
        memory_bytes=facts.total_memory,
        index=index,
        torchao=_torchao(),
    )


def _torchao() -> str | None:
    """Its version, without importing it."""
    try:
        return importlib.metadata.version("torchao")
    except importlib.metadata.PackageNotFoundError:
        return None


def _mps() -> DeviceFacts:
    import torch

    if not _has_mps():
        raise ConfigError(Problem("device", "got `mps`, this machine or this torch has none", _existing()))
    return DeviceFacts("mps", cpu_info().model, str(torch.__version__), memory_bytes=_machine_bytes())


def _cuda_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _has_mps() -> bool:
    import torch

    return torch.backends.mps.is_available()


def _why_no_cuda(found: int) -> str:
    import torch

    if found:
        return f"there are {found} CUDA devices, counted from 0"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} was built without CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every device"
    return "torch finds no CUDA device (is the driver installed?)"


def _existing() -> str:
    """The devices that could be asked for."""
    there = ["cpu", *(f"cuda:{i}" for i in range(_cuda_count())), *(["mps"] if _has_mps() else [])]
    return "there is device=" + " or device=".join(there)


def _machine_bytes() -> int | None:
    """The machine's memory, or the smaller limit of its control group."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
