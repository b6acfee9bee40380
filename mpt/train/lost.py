"""What low precision loses, measured at log points: gradients that became zero, updates rounded away."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.build import Run
from mpt.telemetry.history import read
from mpt.train.progress import Progress

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


def vanished(progress: Progress) -> list[str]:
    """What the user is told at the end where most gradients became 0."""
    shares = progress.zero_grad_share
    share = sum(shares) / len(shares) if shares else 0.0
    if share < MOSTLY:
        return []
    hint = "numerics=light shows where, and mpt report RUN_DIR --advise-scaling which scale they need"
    return [f"{share:.1%} of the gradients became 0 in float16: too small for it. Use scaling=dynamic; {hint}"]
