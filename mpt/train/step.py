"""One attempt at one update: the only owner of scale, backward, unscale, clip, skip and step.

Nothing here reads a device scalar on the host. What happened is left as device scalars in `Attempt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from mpt.optim._base import Optimizer
from mpt.optim._torch import ClosureOptimizer
from mpt.precision.policy import Policy
from mpt.scaling._base import Scaler
from mpt.tasks._base import Task
from mpt.train.buffers import Buffers
from mpt.train.ema import Ema
from mpt.train.norm import global_norm
from mpt.types import Batch


@dataclass(slots=True)
class Attempt:
    """What one attempt left: 0-dim float32 tensors on the device, and what the host knows anyway.

    `loss_sum` / `count` is the loss before `task.loss_weight`; `found` is 1 where the step was skipped.
    """

    loss_sum: Tensor
    count: int
    norm: Tensor
    scale: Tensor
    found: Tensor
    samples: int


def start_backward(loss_sum: Tensor, seed: Tensor) -> None:
    """Gradients of seed · loss_sum are added to `.grad`; loss_sum and seed are 0-dim.

    torch.autograd.backward does this and before it compares shapes symbolically, which imports sympy on first use
    (0.5 s of start-up).
    """
    _engine_run_backward((loss_sum,), (seed,), False, False, (), allow_unreachable=True, accumulate_grad=True)


class Stepper:
    """Turns a window of micro-batches into one attempt."""

    def __init__(
        self,
        *,
        model: nn.Module,
        policy: Policy,
        task: Task,
        scaler: Scaler,
        optimizer: Optimizer,
        rates: Tensor,
        buffers: Buffers,
        ema: Ema | None,
        clip_norm: float | None,
        loss_weight: float,
    ) -> None:
        self._model, self._policy, self._task = model, policy, task
        self._scaler, self._optimizer = scaler, optimizer
        self._buffers, self._ema = buffers, ema
        self._clip_norm, self._loss_weight = clip_norm, loss_weight
        device = rates.device
        self._rates = rates
        self._updates = torch.zeros(1, dtype=torch.int64, device=device)
        self._lr = rates[:1].clone()
        self._lr_scalar = self._lr.view(())
        self._seeds: dict[int, Tensor] = {}
        self._holders = list({id(t): t for t in (*policy.weights, *policy.masters)}.values())

    def __call__(self, window: Sequence[Batch]) -> Attempt:
        """One attempt; the model's buffers, weights and moments are untouched where it is skipped."""
        if self._optimizer.by_closure:
            return self._by_closure(window)
        self._buffers.keep()
        loss_sum, count = self.backward(window)
        norm, scale, found = self._update()
        return Attempt(loss_sum, count, norm, scale, found, sum(len(b.targets) for b in window))

    def backward(self, window: Sequence[Batch]) -> tuple[Tensor, int]:
        """Gradients of scale · weight · loss_sum / count lie in the working weights' `.grad`."""
        task, policy, model = self._task, self._policy, self._model
        for weight in self._holders:
            weight.grad = None
        count = sum(task.count(batch) for batch in window)
        seed = self._seed(count)
        total: Tensor | None = None
        for batch in window:
            with policy.forward():
                output = model(batch.inputs)
            loss_sum = task.loss_sum(output, batch)
            with policy.backward():
                start_backward(loss_sum, seed)
            total = loss_sum.detach() if total is None else total + loss_sum.detach()
        assert total is not None, "a window has at least one micro-batch"
        return total, count

    def _seed(self, count: int) -> Tensor:
        """d(scaled loss) / d(loss_sum): scale, weight and division in float32, before the graph is entered."""
        share = self._seeds.get(count)
        if share is None:
            share = self._seeds[count] = torch.full((), self._loss_weight / count, device=self._rates.device)
        return self._scaler.scale * share if self._scaler.active else share

    @torch.no_grad()
    def _update(self) -> tuple[Tensor, Tensor, Tensor]:
        scaler, optimizer = self._scaler, self._optimizer
        self._policy.gather()
        grads = [p.grad for p in optimizer.params]
        norm = global_norm([g for g in grads if g is not None])
        scale = scaler.scale
        if scaler.active:
            norm = norm / scale
        found = (norm - norm).ne_(0)  # finite: 0; inf and NaN: NaN, which is not 0
        optimizer.step(grads, self._lr_scalar, self._divisor(norm, scale), found)
        if scaler.changes:
            scale = scale.clone()
            scaler.update(found)
        self._policy.publish()
        self._after(found)
        return norm, scale, found

    def _divisor(self, norm: Tensor, scale: Tensor) -> Tensor:
        """What gradients are divided by: the scale, times the excess of the norm over clip_norm."""
        if self._clip_norm is None:
            return scale
        # torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm
        return ((norm + 1e-6) / self._clip_norm).clamp_(min=1.0) * scale

    def _after(self, found: Tensor) -> None:
        """The next rate, the buffers and the average follow applied updates only."""
        self._buffers.restore(found)
        if self._ema is not None:
            self._ema.update(found)
        self._updates.add_(found.eq(0))
        torch.index_select(self._rates, 0, self._updates, out=self._lr)

    def _by_closure(self, window: Sequence[Batch]) -> Attempt:
        """An update by an optimizer that evaluates the loss itself; undone where it ends non-finite."""
        self._buffers.keep()
        kept = [p.detach().clone() for p in self._optimizer.params]
        first: list[tuple[Tensor, int]] = []

        def closure() -> Tensor:
            loss_sum, count = self.backward(window)
            with torch.no_grad():
                self._policy.gather()
            first.append((loss_sum, count))
            return loss_sum * (self._loss_weight / count)

        optimizer = cast(ClosureOptimizer, self._optimizer)
        optimizer.step_closure(closure, self._lr_scalar)
        with torch.no_grad():
            grads = [p.grad for p in optimizer.params if p.grad is not None]
            norm = global_norm(grads)
            size = global_norm([p.detach() for p in optimizer.params])
            found = (norm - norm + size - size).ne_(0)
            for param, before in zip(optimizer.params, kept, strict=True):
                torch.where(found.bool(), before, param, out=param)
            self._policy.publish()
            self._after(found)
        loss_sum, count = first[0]
        return Attempt(loss_sum, count, norm, self._scaler.scale, found, sum(len(b.targets) for b in window))

    def state_dict(self) -> dict[str, Tensor]:
        return {"updates": self._updates}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._updates.copy_(state["updates"])
        torch.index_select(self._rates, 0, self._updates, out=self._lr)
