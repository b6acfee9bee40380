"""Freed memory stays with a process that trains on a CPU, unless its environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import resource
import torch
from mpt.build import make_plan
from mpt.config.compose import compose
from mpt.train.host import on_host

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        held = [torch.ones(750_000) for _ in range(10)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

cfg = compose(["device=cpu"])
with on_host(cfg, make_plan(cfg)):
    faults()
    print(faults())
"""
PAGES = 8 * 10 * 3_000_000 // 4096


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="malloc is not glibc's")
@pytest.mark.parametrize("said", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}])
def test_pages_that_were_freed_are_used_again_without_a_fault(said: dict[str, str]) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))} | said
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True, timeout=100
    )
    faults = int(done.stdout)
    assert faults > 0.9 * PAGES if said else faults < 0.05 * PAGES
