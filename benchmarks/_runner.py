"""The runner as `mpt train` uses it, with a seam: every few batches, someone else may have a turn."""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from mpt import registry
from mpt.bench.expert import expert as expert
from mpt.bench.expert import table as table
from mpt.bench.expert import twin as twin
from mpt.build import Run, build
from mpt.config.compose import compose
from mpt.data._context import DataSource
from mpt.plan.facts import probe
from mpt.precision.switches import flags
from mpt.telemetry.device import wait
from mpt.train.engine import make_engine
from mpt.train.products import cpu_products
from mpt.train.run import train
from mpt.types import Batch

ONLY_STEPS = ("trainer.eval_every=0", "checkpoint.every=0")
"""One evaluation and one checkpoint, both at the end: what lies between is steps and their record."""


def waiter(device: torch.device) -> Callable[[], object]:
    """A function that returns when the device has done all that was asked of it."""
    return partial(wait, device)


class Interposed:
    """A data source that gives `turn` the floor before every `block` batches and times the steps in between."""

    def __init__(self, inner: DataSource, block: int, turn: Callable[[], object], wait: Callable[[], object]) -> None:
        self._inner, self._block, self._turn, self._wait = inner, block, turn, wait
        self.step_ms: list[float] = []
        """Milliseconds a step, of each block."""

    def train(self, start: int) -> Iterator[Batch]:
        batches = self._inner.train(start)
        since_s = 0.0
        while True:
            self._wait()
            if since_s:
                self.step_ms.append(1e3 * (time.perf_counter() - since_s) / self._block)
            self._turn()
            since_s = time.perf_counter()
            for _ in range(self._block):
                yield next(batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def whole_run(words: list[str], *, block: int, blocks: int, peer: Callable[[Run], Callable[[], object]]) -> list[float]:
    """Milliseconds a step of each of `blocks` blocks of `mpt train`, every default record on.

    `peer(run)` makes, from another run of the same configuration, the function that has a turn before each block.
    The first block, which the dry pass falls into, is dropped.
    """
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        steps = block * (blocks + 1) + 1
        cfg = compose([*words, *ONLY_STEPS, f"trainer.max_steps={steps}", f"run_dir={folder}/run"])
        like = build(cfg)
        turn, wait, made = peer(like), waiter(like.device), []

        def interposed(inner: DataSource) -> DataSource:
            made.append(Interposed(inner, block, turn, wait))
            return made[-1]

        with seam(cfg.data.name, interposed):
            code = train(cfg, ["benchmark"])
    assert code == 0, f"the run ended with {code}"
    return made[-1].step_ms[1:]


@contextmanager
def seam(name: str, wrap: Callable[[DataSource], DataSource]) -> Iterator[None]:
    """Inside, data=`name` opens what `wrap` makes of it; all else of the run is as ever."""
    module = importlib.import_module(f"mpt.data.{name}")
    registry.register("data", name)(
        SimpleNamespace(**{**vars(module), "open_data": lambda *given: wrap(module.open_data(*given))})
    )
    try:
        yield
    finally:
        registry.register("data", name)(module)


class Steps:
    """The runner's step alone, for comparing one precision with another; the record is a vanishing part of these."""

    def __init__(self, *words: str) -> None:
        self.cfg = compose([*words, *ONLY_STEPS, "trainer.max_steps=100000"])
        self._facts = probe(self.cfg.device)
        self.of = build(self.cfg)
        self._stepper = make_engine(self.of).stepper
        self._batches = self.of.data.train(start=0)

    @property
    def mechanism(self) -> str:
        """How the policy's format is had here, and why."""
        found = self.of.plan.mechanism
        return f"{found.compute} {found.how}: {found.reason}"

    def run(self, steps: int) -> None:
        """The next `steps` steps, under the policy's switches."""
        switches = flags(self.cfg.precision, self._facts, deterministic=self.cfg.trainer.deterministic)
        with switches, cpu_products(self.cfg, self.of.plan):
            for _ in range(steps):
                self._stepper([next(self._batches)])
