"""Whether the batches that workers prepare fit into shared memory; no torch."""

from __future__ import annotations

import os
from pathlib import Path

from mpt.config.schema import DataConfig
from mpt.data._workers import by_threads, worker_count
from mpt.errors import Problem

SHM = Path("/dev/shm")
# Batches that each worker prepares ahead; torch's default.
PREFETCH = 2


def shm_problems(cfg: DataConfig, size: int) -> list[Problem]:
    """A problem when less shared memory is free than worker processes × prefetched batches of 8-bit colour images."""
    workers = worker_count(cfg)
    if workers == 0 or by_threads(cfg) or not SHM.is_dir():
        return []
    largest = max(cfg.batch_size, cfg.eval_batch_size or 4 * cfg.batch_size)
    needed = workers * PREFETCH * (cfg.batch_size + largest) * 3 * size * size
    free = _free(SHM)
    if free >= needed:
        return []
    what = f"{free >> 20} MiB free, but {workers} workers prepare {needed >> 20} MiB of batches"
    hint = "enlarge it (docker run --shm-size=8g), or use data.threads=true"
    return [Problem(str(SHM), what, hint)]


def _free(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize
