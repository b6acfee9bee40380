"""A loop as an expert writes it by hand, complete and in one place: what the runner is measured against."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mpt import recompute, registry
from mpt.build import Run, channels_last
from mpt.rng import seed_all

LOG_EVERY = 50
MOST_BYTES = 2**30
"""Of a table: a folder of images may be larger than any memory, and a few batches tell the speed of a loop."""


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
            loss.backward()  # type: ignore[no-untyped-call]
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


def table(run: Run, steps: int) -> Table:
    """The samples of the run's first `steps` batches in memory, and their rows; of as many as MOST_BYTES hold."""
    batches = run.data.train(start=0)
    first = next(batches)
    steps = min(steps, max(1, MOST_BYTES // first.inputs.nbytes))
    indices = [run.data.train_indices(micro) for micro in range(steps)]
    places = {sample: row for row, sample in enumerate(dict.fromkeys(chain.from_iterable(indices)))}
    rows = [[places[sample] for sample in micro] for micro in indices]
    channels_last = first.inputs.dim() == 4 and first.inputs.permute(0, 2, 3, 1).is_contiguous()
    stored = first.inputs.permute(0, 2, 3, 1) if channels_last else first.inputs
    inputs = stored.new_zeros(len(places), *stored.shape[1:])
    targets = first.targets.new_zeros(len(places), *first.targets.shape[1:])
    for at, batch in zip(rows, chain([first], batches), strict=False):
        inputs[at] = batch.inputs.permute(0, 2, 3, 1) if channels_last else batch.inputs
        targets[at] = batch.targets
    return Table(inputs, targets, torch.tensor(rows, device=inputs.device), channels_last)


def twin(run: Run) -> nn.Module:
    """Another model with the run's initial weights and layout, untouched by any policy."""
    seed_all(run.cfg.seed)
    model: nn.Module = registry.load("models", run.cfg.model.name).build(run.cfg.model.options, run.data.spec)
    model = model.to(run.device)
    if channels_last(run.cfg):
        model = model.to(memory_format=torch.channels_last)
    recompute.install(model, run.plan.recomputed)  # asked for by whoever compares; by hand it is torch's same function
    return model.train()


def expert(run: Run, steps: int, *, half: bool = False) -> Expert:
    """The expert's loop over the run's batches, from its weights, with its schedule; `half`: under autocast."""
    rates = [run.lr(update) for update in range(steps)]
    autocast = torch.autocast(run.device.type, dtype=torch.bfloat16) if half else None
    decay = run.cfg.optimizer.weight_decay
    return Expert(twin(run), table(run, steps), rates, weight_decay=decay, autocast=autocast)
