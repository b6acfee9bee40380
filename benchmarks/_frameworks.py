"""Training frameworks at their defaults, over the expert's batches: each builds its loop anew for every turn.

A turn is timed between two fetches of a batch, so that neither starting a framework nor its end counts.
"""

from __future__ import annotations

import io
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from _peers import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from mpt.bench.expert import loss_of

WARM = 20
"""Steps before the clock starts."""


class Batches(IterableDataset[tuple[Tensor, Tensor]]):
    """In-memory batches, indexed as the expert does it; remembers when the first and the last timed one was fetched."""

    def __init__(self, table: Table, block: int) -> None:
        self.table, self.block, self.stamps = table, block, [0.0, 0.0]

    @property
    def steps(self) -> int:
        return WARM + self.block + 1

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(self.steps):
            if step in (WARM, WARM + self.block):
                self.stamps[step > WARM] = time.perf_counter()
            rows = self.table.rows[step % len(self.table.rows)]
            yield self.table.look(self.table.inputs[rows]), self.table.targets[rows]

    def step_ms(self) -> float:
        return 1e3 * (self.stamps[1] - self.stamps[0]) / self.block


class Task:
    """What every framework is given: a fresh net, batches, learning rates of all steps, decay."""

    def __init__(
        self, make: Callable[[], nn.Module], table: Table, rates: list[float], weight_decay: float, block: int
    ) -> None:
        self.net, self.batches, self.rates, self.loss = make(), Batches(table, block), rates, loss_of(table)
        self.weight_decay = weight_decay
        self.loader = DataLoader(self.batches, batch_size=None)

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.net.parameters(), lr=self.rates[0], weight_decay=self.weight_decay)

    def schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        peak, rates = self.rates[0], self.rates
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step % len(rates)] / peak)


def fabric(task: Task, folder: str) -> None:
    """Lightning Fabric's own example loop."""
    from lightning.fabric import Fabric

    run = Fabric(accelerator="cpu", devices=1)
    model, optimizer = run.setup(task.net, task.optimizer())
    schedule = task.schedule(optimizer)
    for inputs, targets in run.setup_dataloaders(task.loader):
        optimizer.zero_grad()
        run.backward(task.loss(model(inputs), targets))
        optimizer.step()
        schedule.step()


def accelerate(task: Task, folder: str) -> None:
    """Accelerate's own example loop."""
    from accelerate import Accelerator

    run = Accelerator(cpu=True)
    optimizer = task.optimizer()
    model, optimizer, loader, schedule = run.prepare(task.net, optimizer, task.loader, task.schedule(optimizer))
    for inputs, targets in loader:
        optimizer.zero_grad()
        run.backward(task.loss(model(inputs), targets))
        optimizer.step()
        schedule.step()
    run.free_memory()


def lightning(task: Task, folder: str) -> None:
    """Lightning's Trainer with its default logger, progress bar and checkpoint."""
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = task.net

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            loss = task.loss(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = task.optimizer()
            return [optimizer], [{"scheduler": task.schedule(optimizer), "interval": "step"}]

    trainer = L.Trainer(accelerator="cpu", devices=1, max_steps=task.batches.steps, default_root_dir=folder)
    trainer.fit(Module(), task.loader)


def transformers(task: Task, folder: str) -> None:
    """Hugging Face's Trainer with its default optimizer, clipping, schedule and logging; it saves no channels_last."""
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = task.net

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            output = self.net(inputs)
            return {"loss": task.loss(output, labels), "logits": output}

    class Named(IterableDataset[dict[str, Tensor]]):
        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            for inputs, targets in task.batches:
                yield {"inputs": inputs, "labels": targets}

    class InMemory(Trainer):
        def get_train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(Named(), batch_size=None)

    how = TrainingArguments(
        output_dir=folder, use_cpu=True, max_steps=task.batches.steps, learning_rate=task.rates[0],
        weight_decay=task.weight_decay, per_device_train_batch_size=task.batches.table.rows.shape[1],
        save_strategy="no",
    )  # fmt: skip
    InMemory(model=Model(), args=how, train_dataset=Named()).train()


def timm(task: Task, folder: str) -> None:
    """One epoch as timm's train.py has it (a script, no part of the package), of timm's own parts."""
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import AverageMeter

    model, steps = task.net.train(), task.batches.steps
    optimizer = create_optimizer_v2(model, "adamw", lr=task.rates[0], weight_decay=task.weight_decay)
    schedule = CosineLRScheduler(optimizer, t_initial=steps, t_in_epochs=False)
    losses, updates = AverageMeter(), AverageMeter()
    last_s = time.time()
    for update, (inputs, targets) in enumerate(task.loader):
        loss = task.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.update(loss.item(), inputs.size(0))
        updates.update(time.time() - last_s)
        last_s = time.time()
        schedule.step_update(num_updates=update + 1, metric=losses.avg)


FRAMEWORKS: dict[str, tuple[str, Callable[[Task, str], None]]] = {
    "Fabric": ("lightning", fabric),
    "Accelerate": ("accelerate", accelerate),
    "Lightning Trainer": ("lightning", lightning),
    "HF Trainer": ("transformers", transformers),
    "timm's loop": ("timm", timm),
}


def installed() -> tuple[list[str], list[str]]:
    """Names of frameworks that can be measured here, and of those that are missing."""
    here = [name for name, (package, _) in FRAMEWORKS.items() if find_spec(package)]
    return here, [name for name in FRAMEWORKS if name not in here]


def turn(name: str, make: Callable[[], Task]) -> float:
    """Milliseconds a step of one framework's loop over a fresh task."""
    task = make()
    with tempfile.TemporaryDirectory() as folder, quiet():
        FRAMEWORKS[name][1](task, folder)
    return task.batches.step_ms()


def turns(make: Callable[[], Task]) -> dict[str, Callable[[], float]]:
    """A turn of each framework that is installed."""
    return {name: partial(turn, name, make) for name in installed()[0]}


@contextmanager
def quiet() -> Iterator[None]:
    """What frameworks say goes nowhere, and costs them as little as it can."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
