"""What the runner is measured against: the loops that people write by hand, complete and in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

LOG_EVERY = 50


@dataclass(frozen=True)
class Table:
    """A training set in memory and the order of its batches.

    Shapes: inputs N,… (images stored N,H,W,C where `channels_last`), targets N or N,L; rows steps,B.
    """

    inputs: Tensor
    targets: Tensor
    rows: Tensor
    channels_last: bool

    def look(self, inputs: Tensor) -> Tensor:
        """Stored rows as the model takes them."""
        return inputs.permute(0, 3, 1, 2) if self.channels_last else inputs


def loss_of(table: Table) -> Callable[[Tensor, Tensor], Tensor]:
    """Mean cross entropy in float32, of images (targets B) or tokens (targets B,L)."""
    if table.targets.dim() == 1:
        return F.cross_entropy
    return lambda output, targets: F.cross_entropy(output.float().flatten(0, 1), targets.flatten())


class Expert:
    """A loop without a wasted call: fused AdamW, indexed in-memory tensors, the loss read at log points only.

    It sets the learning rate of the schedule in each step. It computes no gradient norm, does not skip
    non-finite steps, restores no buffers, and records nothing but the loss at log points.
    """

    def __init__(
        self,
        model: nn.Module,
        table: Table,
        rates: list[float],
        *,
        weight_decay: float,
        autocast: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.model = model
        self._forward = model if autocast is None else _inside(autocast, model)
        self._rates, self._loss = rates, loss_of(table)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=rates[0], weight_decay=weight_decay, fused=True)
        self._inputs, self._targets, self._rows = table.inputs, table.targets, table.rows.unbind(0)
        self._channels_last = table.channels_last
        self._step = 0
        self.losses: list[float] = []

    def run(self, steps: int) -> None:
        """The next `steps` steps; starts over when the order is used up."""
        forward, loss_of, optimizer = self._forward, self._loss, self._optimizer
        for _ in range(steps):
            step = self._step % len(self._rows)
            rows = self._rows[step]
            inputs = self._inputs[rows]
            if self._channels_last:
                inputs = inputs.permute(0, 3, 1, 2)
            loss = loss_of(forward(inputs), self._targets[rows])
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = self._rates[step]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self._step += 1
            if self._step % LOG_EVERY == 0:
                self.losses.append(loss.item())

    def save(self, path: Path) -> None:
        """Weights and optimizer state in one file."""
        torch.save({"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}, path)


def _inside(autocast: AbstractContextManager[Any], model: nn.Module) -> Callable[[Tensor], Tensor]:
    def forward(inputs: Tensor) -> Tensor:
        with autocast:
            output: Tensor = model(inputs)
        return output.float()

    return forward


class Textbook:
    """The loop of the tutorials: default AdamW, clip_grad_norm_, GradScaler, DataLoader over a TensorDataset."""

    def __init__(
        self, model: nn.Module, table: Table, rates: list[float], *, weight_decay: float, clip_norm: float, scaled: bool
    ) -> None:
        self._model, self._clip_norm = model, clip_norm
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=rates[0], weight_decay=weight_decay)
        peak = rates[0]
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda u: rates[u % len(rates)] / peak)
        self._scaler = torch.amp.GradScaler(table.inputs.device.type, enabled=scaled)
        data = TensorDataset(table.look(table.inputs), table.targets)
        self._loader = DataLoader(data, batch_size=table.rows.shape[1], shuffle=True, drop_last=True)
        self._batches = self._endless()
        self._step = 0
        self.losses: list[float] = []

    def _endless(self) -> Iterator[list[Tensor]]:
        while True:
            yield from self._loader

    def run(self, steps: int) -> None:
        """The next `steps` steps."""
        model, optimizer, scaler = self._model, self._optimizer, self._scaler
        for _ in range(steps):
            inputs, targets = next(self._batches)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), self._clip_norm)
            scaler.step(optimizer)
            scaler.update()
            self._schedule.step()
            self._step += 1
            if self._step % LOG_EVERY == 0:
                self.losses.append(loss.item())
