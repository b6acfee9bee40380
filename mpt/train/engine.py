"""What turns batches into updates, made from a Run: stepper, buffers and average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mpt.build import Run
from mpt.train.buffers import Buffers
from mpt.train.ema import Ema
from mpt.train.step import Stepper


@dataclass
class Engine:
    """The moving parts of one run; `model` is compiled where asked."""

    model: nn.Module
    stepper: Stepper
    buffers: Buffers
    ema: Ema | None


def make_engine(run: Run) -> Engine:
    """An engine at update 0."""
    cfg = run.cfg.trainer
    buffers = Buffers(run.model)
    ema = _ema(run, buffers)
    model: nn.Module = torch.compile(run.model) if cfg.compile else run.model  # type: ignore[assignment]
    stepper = Stepper(
        model=model,
        policy=run.policy,
        task=run.task,
        scaler=run.scaler,
        optimizer=run.optimizer,
        rates=_rates(run.lr, run.plan.length.steps, run.device),
        buffers=buffers,
        ema=ema,
        clip_norm=cfg.clip_norm,
        loss_weight=run.cfg.task.loss_weight,
    )
    return Engine(model, stepper, buffers, ema)


def _ema(run: Run, buffers: Buffers) -> Ema | None:
    decay = run.cfg.trainer.ema_decay
    if decay is None:
        return None
    floating = buffers.floating()
    return Ema([*run.policy.masters, *floating], [*run.policy.weights, *floating], decay)


def _rates(lr: Callable[[int], float], steps: int, device: torch.device) -> Tensor:
    """The schedule as a table on the device, indexed by updates; one entry more than can be applied."""
    return torch.tensor([lr(u) for u in range(steps + 1)], dtype=torch.float32, device=device)
