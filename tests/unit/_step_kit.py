"""A small net and the parts around it, for tests of the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mpt import registry
from mpt.config.compose import compose
from mpt.config.schema import RunConfig
from mpt.optim import build_optimizer
from mpt.plan.facts import probe
from mpt.precision.capability import resolve
from mpt.precision.policy import Policy, install
from mpt.scaling._base import Scaler
from mpt.schedules import lr_at
from mpt.tasks._base import Task
from mpt.train.buffers import Buffers
from mpt.train.ema import Ema
from mpt.train.rates import BLOCK, Rates
from mpt.train.step import Stepper
from mpt.types import Batch, DataSpec

CLASSES, WIDTH, STEPS = 4, 12, 64
SPEC = DataSpec("made", "images", (1, 1, WIDTH), CLASSES, 64, 64, tuple("abcd"), "0")


class Net(nn.Module):
    """Two layers with a batch norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 16, bias=False)  # before a batch norm its gradient would be noise
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(x.flatten(1))).relu())


class Kit:
    """A Stepper and all that it was made of."""

    def __init__(self, *words: str, model: nn.Module | None = None) -> None:
        self.cfg: RunConfig = compose(list(words))
        torch.manual_seed(0)
        self.model = Net() if model is None else model
        device = torch.device("cpu")
        entry = registry.load("scaling", self.cfg.scaling.rule or self.cfg.scaling.name)
        self.scaler: Scaler = entry.build(self.cfg.scaling, device)
        self.scaler.attach(self.model)
        mechanism = resolve(self.cfg.precision, probe("cpu"))
        self.policy: Policy = install(self.model, self.cfg.precision, mechanism)
        self.task: Task = registry.load("tasks", "classification").build({}, SPEC)
        self.optimizer = build_optimizer(
            self.cfg.optimizer, self.policy.masters, self.cfg.precision.moment, self.policy.storage
        )
        self.lr = lr_at(self.cfg.schedule, self.cfg.optimizer.lr, STEPS)
        self.buffers = Buffers(self.model)
        decay = self.cfg.trainer.ema_decay
        self.ema = None if decay is None else Ema(self.policy.held, self.buffers.floating(), decay)
        self.rates = Rates(self.lr, 50, BLOCK, device)
        self.step = Stepper(
            model=self.model,
            policy=self.policy,
            task=self.task,
            scaler=self.scaler,
            optimizer=self.optimizer,
            rates=self.rates,
            buffers=self.buffers,
            ema=self.ema,
            clip_norm=self.cfg.trainer.clip_norm,
            loss_weight=self.cfg.task.loss_weight,
        )

    def everything(self) -> list[Tensor]:
        """Copies of all that a skipped step must leave alone."""
        average = self.ema.average if self.ema else []
        state = [
            *self.policy.masters,
            *self.policy.weights,
            *self.model.buffers(),
            *self.optimizer.state_tensors(),
            *average,
        ]
        return [t.detach().clone() for t in state]


def batch(seed: int, size: int = 16) -> Batch:
    """Random inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        torch.randn(size, 1, 1, WIDTH, generator=generator), torch.randint(CLASSES, (size,), generator=generator)
    )


def poisoned(seed: int, value: float = float("nan")) -> Batch:
    """A batch with one number that breaks the forward pass."""
    made = batch(seed)
    made.inputs[3, 0, 0, 5] = value
    return made


def changed(cfg: Any, **values: Any) -> Any:
    """A copy of a config dataclass with other values."""
    return replace(cfg, **values)


class Reads(TorchDispatchMode):
    """Counts reads of device scalars by the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))
