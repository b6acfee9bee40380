"""How a run uses the machine that it is on: CPU threads, and memory that was freed."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan

TINY_PARAMS = 500_000
TINY_NUMBERS = 100_000
"""Below both (weights, and numbers in a batch of inputs) an op is shorter than starting a parallel region."""


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of what mallopt sets. Source: malloc.h of glibc."""
_LARGEST_ON_HEAP = 32 * 2**20
"""Bytes; glibc takes no larger threshold: it maps what is larger, and unmaps it when it is freed."""


@contextmanager
def on_host(cfg: RunConfig, plan: Plan) -> Iterator[None]:
    """torch uses trainer.threads inside; else one for tiny nets on a CPU, unless OMP_NUM_THREADS says otherwise.

    With two threads, spinning cost tiny nets up to 40 times the time on a busy machine. A process that has trained
    on a CPU keeps memory that it freed.
    """
    if plan.device.type == "cpu":
        _keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(_wanted(cfg, plan) or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _wanted(cfg: RunConfig, plan: Plan) -> int | None:
    numbers = plan.batch_size * math.prod(plan.data.shape)
    tiny = plan.device.type == "cpu" and plan.params < TINY_PARAMS and numbers < TINY_NUMBERS
    return cfg.trainer.threads or (1 if tiny and "OMP_NUM_THREADS" not in os.environ else None)


def _keep_freed_memory() -> None:
    """glibc gives no freed memory back to the kernel, from which a step would get each page zeroed again; row 23 of
    docs/performance.md is what that costs. Where the environment says how malloc is to do it, or malloc is not glibc's,
    nothing changes. It stays so after the run: mallopt can't tell what was set before."""
    said = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if said or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
