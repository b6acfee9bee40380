"""How many workers read files, and whether they are threads; no torch."""

from __future__ import annotations

import os

from mpt.config.schema import DataConfig

MOST_THREADS = 6
"""Reading a 256-pixel JPEG takes 0.6 ms of which the interpreter is held for 0.1: six threads keep it busy."""


def usable_cpus() -> int:
    """CPUs that this process may run on; macOS knows only how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_count(cfg: DataConfig) -> int:
    """`data.workers`; by default one for each CPU, up to MOST_THREADS. 0: the training process reads."""
    return min(usable_cpus(), MOST_THREADS) if cfg.workers is None else cfg.workers


def by_threads(cfg: DataConfig) -> bool:
    """Whether the workers that read image files are threads; more than MOST_THREADS are processes."""
    if cfg.threads == "auto":
        return worker_count(cfg) <= MOST_THREADS
    return cfg.threads == "true"
