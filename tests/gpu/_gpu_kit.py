"""A run's parts on the GPU, for tests that drive single steps."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mpt.build import build
from mpt.config.compose import compose
from mpt.precision.switches import flags
from mpt.train.engine import make_engine
from mpt.train.step import Attempt
from mpt.types import Batch

DEVICE = os.environ.get("MPT_GPU_TESTS_ON", "cuda")
CNN = ("model=small_cnn", "model.width=16")
GPT = (
    *("model=gpt", "model.layers=2", "model.width=64", "model.heads=4", "model.context=64"),
    *("data=shakespeare", "data.batch_size=8", "data.limit=512"),
)
NETS = {"small_cnn": CNN, "gpt": GPT}
POLICIES = ("fp32", "tf32", "bf16", "fp16", "fp16_master", "bf16_true")
"""Policies that the GPU has kernels for."""


class Kit:
    """Model, stepper and batches of one configuration on DEVICE; enter `switched` around steps."""

    def __init__(self, *words: str) -> None:
        self.cfg = compose([*words, f"device={DEVICE}"])
        self.run = build(self.cfg)
        self.engine = make_engine(self.run)
        self._batches = self.run.data.train(start=0)

    @contextmanager
    def switched(self) -> Iterator[None]:
        """TF32 and the other switches stand as the policy wants them."""
        with flags(self.cfg.precision, self.run.plan.device, deterministic=self.cfg.trainer.deterministic):
            yield

    def batch(self) -> Batch:
        return next(self._batches)

    def step(self, *batches: Batch) -> Attempt:
        """One attempt over these micro-batches, or over the next one."""
        with self.switched():
            return self.engine.stepper(list(batches) or [self.batch()])

    def everything(self) -> list[Tensor]:
        """Copies of all that a skipped step must leave alone."""
        run, average = self.run, self.engine.ema.average if self.engine.ema else []
        state = [*run.policy.masters, *run.policy.weights, *run.model.buffers(), *run.optimizer.state_tensors()]
        return [t.detach().clone() for t in (*state, *average, self.engine.rates.now, run.scaler.scale)]


def host_wait_is_error() -> None:
    """From here on whatever makes the host wait for the GPU raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")


def host_wait_is_allowed() -> None:
    torch.cuda.set_sync_debug_mode("default")
