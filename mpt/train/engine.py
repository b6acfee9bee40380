"""What turns batches into updates, made from a Run: stepper, buffers, rates and average."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpt.build import Parts
from mpt.train.buffers import Buffers
from mpt.train.ema import Ema
from mpt.train.inject import Injector
from mpt.train.rates import BLOCK, Pace, Rates
from mpt.train.step import Stepper


@dataclass
class Engine:
    """The moving parts of one run."""

    stepper: Stepper
    buffers: Buffers
    rates: Rates
    pace: Pace
    ema: Ema | None
    injector: Injector | None = None
    backward_order: tuple[str, ...] = ()
    """Names of the parameters in the order in which the backward pass reaches them."""


def make_engine(run: Parts, steps: int = BLOCK) -> Engine:
    """An engine at update 0 of a run of so many steps; its model is compiled where asked."""
    cfg = run.cfg.trainer
    buffers = Buffers(run.model)
    pace = Pace(run.lr)
    rates = Rates(pace, cfg.log_every, steps, run.device)
    ema = _ema(run, buffers)
    stepper = Stepper(
        model=_compiled(run.model, run.device.type, graphs=cfg.cuda_graphs) if cfg.compile else run.model,
        policy=run.policy,
        task=run.task,
        scaler=run.scaler,
        optimizer=run.optimizer,
        rates=rates,
        buffers=buffers,
        ema=ema,
        clip_norm=cfg.clip_norm,
        loss_weight=run.cfg.task.loss_weight,
    )
    return Engine(stepper, buffers, rates, pace, ema)


def _compiled(model: nn.Module, device: str, *, graphs: bool) -> Callable[[Tensor], Any]:
    if device != "cuda":
        logging.getLogger("torch.utils.cpp_extension").addFilter(_is_of_use)
    torch.compiler.reset()  # an earlier job's graphs would count against this one's limit of recompilations
    if not (graphs and device == "cuda"):
        return torch.compile(model)
    return replayed(torch.compile(model, mode="reduce-overhead"))


def _is_of_use(record: logging.LogRecord) -> bool:
    """Not what the compiler says of a CUDA compiler that it found where the run is on another device."""
    return not str(record.msg).startswith("No CUDA runtime is found")


def replayed(forward: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """`forward`, before which the compiler is told that nothing of the step before is wanted any more.

    It would guess so from the backward pass, and warn where it can't. What outlives a step (loss, norms, weights,
    moments) is made outside of the graphs; gradients are dropped before the next step.
    """

    def step(inputs: Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return forward(inputs)

    return step


def _ema(run: Parts, buffers: Buffers) -> Ema | None:
    decay = run.cfg.trainer.ema_decay
    if decay is None:
        return None
    return Ema(run.policy.held, buffers.floating(), decay)
