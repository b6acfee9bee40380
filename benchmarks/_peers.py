"""What the runner is measured against besides the expert's loop of mpt.bench: the loop of the tutorials."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

from mpt.bench.expert import LOG_EVERY, Table
from mpt.bench.expert import Expert as Expert


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
