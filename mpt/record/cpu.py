"""What /proc/cpuinfo says of the processor; elsewhere what the platform module says."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

FLAGS = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni"),
    *("amx_tile", "amx_bf16", "amx_fp16", "asimdhp", "bf16"),
)
"""Flags that decide which number formats are native (`asimdhp`, `bf16`: Arm)."""


@dataclass(frozen=True)
class CpuInfo:
    """The processor's model, those of FLAGS it has, and the cores that this process may use."""

    model: str
    flags: tuple[str, ...]
    cores: int


def parse(text: str) -> tuple[str, tuple[str, ...]]:
    """Model and flags from the text of /proc/cpuinfo (x86: `flags`; Arm: `Features`)."""
    model = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    has = set(flags.group(1).split()) if flags else set()
    return (model.group(1).strip() if model else ""), tuple(f for f in FLAGS if f in has)


def cpu_info(path: Path = Path("/proc/cpuinfo")) -> CpuInfo:
    """Facts of this machine's processor."""
    try:
        model, flags = parse(path.read_text(errors="replace"))
    except OSError:  # no /proc: macOS, Windows
        model, flags = "", ()
    return CpuInfo(model or platform.processor() or platform.machine(), flags, usable_cores())


def usable_cores() -> int:
    """Cores that this process may run on."""
    if affinity := getattr(os, "sched_getaffinity", None):
        return len(affinity(0))
    return os.cpu_count() or 1
