"""One attempt at one update: the only owner of scale, backward, unscale, clip, skip and step.

Nothing here reads a device scalar on the host. What happened is left as device scalars in `Attempt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from mpt.optim._base import Optimizer
from mpt.optim._torch import ClosureOptimizer
from mpt.precision.policy import Policy
from mpt.scaling._base import Scaler
from mpt.tasks._base import Task
from mpt.train.buffers import Buffers
from mpt.train.ema import Ema
from mpt.train.norm import norms
from mpt.train.rates import Rates
from mpt.types import Batch


@dataclass(slots=True)
class Attempt:
    """What one attempt left: 0-dim float32 tensors on the device, and what the host knows anyway.

    `loss_sum` / `count` is the loss before `task.loss_weight`; `found` is 1 where the step was skipped; `parts`
    (1-D) holds the norm of each gradient, still scaled; `faults` what was counted of a skipped one (overflow.py).
    """

    loss_sum: Tensor
    count: int
    norm: Tensor
    scale: Tensor
    found: Tensor
    samples: int
    parts: Tensor
    faults: Tensor | None = None


class Window(Protocol):
    """The micro-batches of one attempt: iterated once, each fetched when its turn comes."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


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
        model: Callable[[Tensor], Any],
        policy: Policy,
        task: Task,
        scaler: Scaler,
        optimizer: Optimizer,
        rates: Rates,
        buffers: Buffers,
        ema: Ema | None,
        clip_norm: float | None,
        loss_weight: float,
    ) -> None:
        self.model, self._policy, self._task = model, policy, task
        self._scaler, self._optimizer, self._rates = scaler, optimizer, rates
        self._buffers, self._ema = buffers, ema
        self._clip_norm, self._loss_weight = clip_norm, loss_weight
        self._seeds: dict[int, Tensor] = {}
        self._no_grad = torch.no_grad()
        self._holders = list({id(t): t for t in (*policy.weights, *policy.masters, *scaler.leaves)}.values())

    def __call__(self, window: Window) -> Attempt:
        """One attempt; the model's buffers, weights and moments are untouched where it is skipped."""
        self._buffers.keep()
        if self._optimizer.by_closure:
            return self._by_closure(list(window))
        attempt, excess = self.backward(window)
        with self._no_grad:
            self.update(attempt, excess)
        return attempt

    def backward(self, window: Window) -> tuple[Attempt, float]:
        """The working weights' `.grad` holds `excess` times that of scale · weight · loss_sum / count.

        The first micro-batch's count stands for all until they are known: where counts differ, `excess` is not 1.
        """
        for holder in self._holders:
            holder.grad = None
        samples = count = expected = 0
        seed = total = None
        for batch in window:
            count += self._task.count(batch)
            samples += len(batch.targets)
            if seed is None:
                expected = count * len(window)
                seed = self._seed(expected)
            loss_sum = self._forward_backward(batch, seed)
            total = loss_sum if total is None else total + loss_sum
        assert total is not None, "a window has at least one micro-batch"
        scale = self._scaler.scale
        return Attempt(total, count, total, scale, total, samples, total), count / expected

    def _forward_backward(self, batch: Batch, seed: Tensor) -> Tensor:
        with self._policy.forward():
            output = self.model(batch.inputs)
        loss_sum = self._task.loss_sum(output, batch)
        del output  # what the graph does not need of it goes before the backward takes memory
        with self._policy.backward():
            start_backward(loss_sum, seed)
        return loss_sum.detach()

    def _seed(self, count: int) -> Tensor:
        """d(scaled loss) / d(loss_sum): scale, weight and division in float32, before the graph is entered."""
        share = self._seeds.get(count)
        if share is None:
            device = self._scaler.scale.device
            share = self._seeds[count] = torch.full((), self._loss_weight / count, device=device)
        return self._scaler.scale * share if self._scaler.active else share

    def update(self, attempt: Attempt, excess: float) -> None:
        """Unscale, clip, decide, step, without gradients on; what was decided goes into `attempt`."""
        scaler, optimizer = self._scaler, self._optimizer
        self._policy.gather()
        grads = [p.grad for p in optimizer.params]
        norm, attempt.parts = norms([g for g in grads if g is not None])
        divisor = self._divisor(excess)
        if divisor is not None:
            norm = norm / divisor
        both = torch.add(norm, attempt.loss_sum, alpha=0)  # norm, or NaN where either is non-finite
        found = (both - both).ne_(0)  # finite: 0; inf and NaN: NaN, which is not 0
        largest = self._largest(grads, divisor) if scaler.wants_largest else None  # a kernel may unscale in place
        optimizer.step(grads, self._rates.now, self._clipped(divisor, norm), found)
        if scaler.changes:
            attempt.scale = scaler.scale.clone()
            scaler.update(found, largest)
        attempt.norm, attempt.found = norm, found
        self._after(found)

    def _divisor(self, excess: float) -> Tensor | None:
        """What gradients are to be divided by; None where that is 1: dividing writes every gradient once more."""
        if excess != 1:
            return self._scaler.scale * excess
        return self._scaler.scale if self._scaler.active else None

    @staticmethod
    def _largest(grads: list[Tensor | None], divisor: Tensor | None) -> Tensor:
        """The largest magnitude of the unscaled gradients."""
        each = torch._foreach_norm([g for g in grads if g is not None and g.numel()], float("inf"))
        largest = torch.stack([e.float() for e in each]).amax()
        return largest if divisor is None else largest / divisor

    def _clipped(self, divisor: Tensor | None, norm: Tensor) -> Tensor | None:
        """The divisor of gradients, times the excess of the norm over clip_norm."""
        if self._clip_norm is None:
            return divisor
        # torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm
        excess = ((norm + 1e-6) / self._clip_norm).clamp_(min=1.0)
        return excess if divisor is None else excess * divisor

    def _after(self, found: Tensor) -> None:
        """Working weights follow their masters; the next rate, buffers and average follow applied updates only."""
        self._policy.publish()
        self._buffers.restore(found)
        if self._ema is not None:
            self._ema.update(found)
        self._rates.advance(found)

    def _by_closure(self, window: list[Batch]) -> Attempt:
        """An update by an optimizer that evaluates the loss itself; undone where it ends non-finite."""
        optimizer = cast(ClosureOptimizer, self._optimizer)
        attempts: list[Attempt] = []

        def closure() -> Tensor:
            attempt, excess = self.backward(window)
            attempts.append(attempt)
            with torch.no_grad():
                self._policy.gather()
                for param in optimizer.params:
                    if param.grad is not None:  # torch's L-BFGS flattens by view, which channels_last does not allow
                        param.grad = param.grad.contiguous() / excess
            return attempt.loss_sum * (self._loss_weight / attempt.count)

        attempt_found = optimizer.step_closure(closure, self._rates.now)
        attempt = attempts[0]
        with torch.no_grad():
            attempt.norm, attempt.parts = norms([p.grad for p in optimizer.params if p.grad is not None])
            attempt.found = attempt_found
            self._after(attempt_found)
        return attempt
