"""How many CPU threads a run uses."""

from __future__ import annotations

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


@contextmanager
def cpu_threads(cfg: RunConfig, plan: Plan) -> Iterator[None]:
    """torch uses trainer.threads inside; else one for tiny nets on a CPU, unless OMP_NUM_THREADS says otherwise.

    With two threads, spinning cost tiny nets up to 40 times the time on a busy machine.
    """
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
