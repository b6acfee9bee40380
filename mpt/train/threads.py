"""How many CPU threads a run uses."""

from __future__ import annotations

import math
import os

import torch

from mpt.config.schema import RunConfig
from mpt.plan.plan import Plan

TINY_PARAMS = 500_000
TINY_NUMBERS = 100_000
"""Below both (weights, and numbers in a batch of inputs) an op is shorter than starting a parallel region."""


def set_threads(cfg: RunConfig, plan: Plan) -> None:
    """torch uses trainer.threads; else one for tiny nets on a CPU, unless OMP_NUM_THREADS says otherwise.

    With two threads, spinning cost tiny nets up to 40 times the time on a busy machine.
    """
    numbers = plan.batch_size * math.prod(plan.data.shape)
    if cfg.trainer.threads is not None:
        torch.set_num_threads(cfg.trainer.threads)
    elif plan.device.type == "cpu" and plan.params < TINY_PARAMS and numbers < TINY_NUMBERS:
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
