"""What low precision loses, measured at log points: gradients that became zero, updates rounded away."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.build import Run
from mpt.telemetry.history import read
from mpt.train.progress import Progress
from mpt.train.state import Course
from mpt.train.underflow import underflow_share

MOSTLY = 0.5
"""Share of gradients that are exactly 0 from which on it is not only units that are switched off."""


class Losses:
    """Looks at one step in `every`; the device is read at the log point that follows it."""

    def __init__(self, run: Run, every: int) -> None:
        self._policy, self._every = run.policy, every
        self._counts_zeros = run.cfg.precision.compute == "float16"
        self._meter = run.policy.lost_updates
        self._zeros: list[Tensor] = []
        self.active = self._counts_zeros or self._meter.active

    def watches(self, step: int) -> bool:
        """Whether attempt `step` is looked at."""
        return self.active and (step == 1 or step % self._every == 0)

    def before(self) -> None:
        """Call it before an attempt that is looked at."""
        if self._meter.active:
            self._meter.before(self._policy.weights)

    def after(self, found: Tensor) -> None:
        """Call it after that attempt, while its gradients are still there; a skipped one counts for nothing."""
        grads = [m.grad for m in self._policy.masters]
        if self._meter.active:
            self._meter.after(self._policy.weights, grads, found)
        if self._counts_zeros:
            have = [g for g in grads if g is not None]
            zeros = torch.stack([(g == 0).sum() for g in have]).sum()
            share = zeros / sum(g.numel() for g in have)
            self._zeros.append(torch.where(found.bool(), float("nan"), share))

    def read(self, progress: Progress) -> None:
        """What was measured goes to `progress`; reads the device."""
        lost = self._meter.drain()
        if lost is not None:
            progress.lost_update_share.append(lost)
        if self._zeros:
            progress.zero_grad_share += [share for share in read(*self._zeros) if share == share]
            self._zeros = []


def measure_underflow(course: Course) -> None:
    """At the end of a run most of whose gradients were 0: whether they are too small, or 0 whatever the scale."""
    progress, run = course.progress, course.run
    step = course.history.totals.step
    if step and not run.optimizer.by_closure and _mean(progress.zero_grad_share) >= MOSTLY:
        course.underflow_share = underflow_share(run, course.engine.buffers, step)


def vanished(course: Course) -> list[str]:
    """What the user is told at the end where most gradients became 0, or most updates changed nothing."""
    progress, cfg = course.progress, course.run.cfg
    lines = []
    if (course.underflow_share or 0.0) >= MOSTLY:
        way = "a larger scaling.init_scale" if cfg.scaling.name not in ("none", "static") else "scaling=dynamic"
        hint = "numerics=light shows where, and mpt report RUN_DIR --advise-scaling which scale they need"
        what = f"{course.underflow_share:.1%} of the gradients became 0 in float16: too small for it"
        lines.append(f"{what}. Use {way}; {hint}")
    lost, stored = _mean(progress.lost_update_share), cfg.precision.param
    if lost >= MOSTLY and cfg.precision.options.get("update_rounding") != "stochastic":
        way = "precision=fp16_master" if stored == "float16" else "precision=bf16_split"
        more = ", precision.update_rounding=stochastic" if stored == "bfloat16" else ""
        what = f"{lost:.1%} of the updates left their {stored} weights as they were: too small beside them"
        lines.append(f"{what}. Use {way}{more} or a larger optimizer.lr")
    return lines


def _mean(shares: list[float]) -> float:
    return sum(shares) / len(shares) if shares else 0.0
