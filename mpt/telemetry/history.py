"""Device scalars of many steps become step rows with one copy to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mpt.types import StepRow


class StepTime(NamedTuple):
    """Seconds of one step, and the part of them spent waiting for data."""

    time_s: float
    data_wait_s: float


class Outcome(Protocol):
    """What one attempt left: 0-dim float32 tensors on one device, and what the host knows anyway."""

    @property
    def loss_sum(self) -> Tensor: ...
    @property
    def count(self) -> int: ...
    @property
    def norm(self) -> Tensor: ...
    @property
    def scale(self) -> Tensor: ...
    @property
    def found(self) -> Tensor: ...
    @property
    def samples(self) -> int: ...


def read(*tensors: Tensor) -> list[float]:
    """The numbers of all tensors in order; one copy to the host. Shapes: any, on one device."""
    if not tensors:
        return []
    flat = torch.cat([t.detach().reshape(-1).float() for t in tensors])
    return [float(x) for x in flat.cpu().tolist()]


@dataclass
class Totals:
    """Counts since the run began, resumes included. Scales are those that steps used; None before the first."""

    step: int = 0
    update: int = 0
    samples: int = 0
    streak: int = 0
    """Skips in a row up to the last step."""
    longest_streak: int = 0
    nonfinite_losses: int = 0
    first_nonfinite_loss: int | None = None
    scale_init: float | None = None
    scale_min: float | None = None
    scale_max: float | None = None
    scale_last: float | None = None
    growths: int = 0
    backoffs: int = 0
    undone: int = 0
    """Updates that were applied and taken back by a return to an earlier checkpoint."""

    @property
    def skipped(self) -> int:
        return self.step - self.update - self.undone

    def back_to(self, update: int) -> None:
        """The run goes on after that update; steps go on counting attempts."""
        self.undone += self.update - update
        self.update, self.streak = update, 0

    def scale_set(self, scale: float) -> None:
        """The scale that the next step uses was put there by a return, not by its strategy: no growth, no backoff."""
        moves = self.growths, self.backoffs
        self.see_scale(scale)
        self.growths, self.backoffs = moves

    def count(self, row: StepRow) -> None:
        """Take one more step into account."""
        self.step, self.update = row.step, row.update
        self.samples += row.samples
        self.streak = 0 if row.applied else self.streak + 1
        self.longest_streak = max(self.longest_streak, self.streak)
        if row.loss - row.loss != 0:
            self.nonfinite_losses += 1
            self.first_nonfinite_loss = self.first_nonfinite_loss or row.step
        self.see_scale(row.scale)

    def see_scale(self, scale: float) -> None:
        """The scale that the next step uses; call it once more after the last step for the final one."""
        last = self.scale_last
        if scale == last:
            return
        if last is None:
            self.scale_init = self.scale_min = self.scale_max = scale
        else:
            self.growths += scale > last
            self.backoffs += scale < last
            self.scale_min = min(self.scale_min or scale, scale)
            self.scale_max = max(self.scale_max or scale, scale)
        self.scale_last = scale


class History:
    """Holds the outcomes of steps until they are drained, and the totals of what was drained.

    `rate_at(update)` is the learning rate that the attempt after `update` applied changes uses. The recorded loss
    is the mean before task.loss_weight, as in evaluations.
    """

    def __init__(self, rate_at: Callable[[int], float]) -> None:
        self._rate_at = rate_at
        self._pending: list[Outcome] = []
        self.totals = Totals()
        self.add = self._pending.append
        """Keep one step's outcome; reads nothing from the device."""

    def __len__(self) -> int:
        return len(self._pending)

    def drain(self, times: Sequence[StepTime]) -> list[StepRow]:
        """One row for each outcome that was added, in order; the device is read once.

        Raises: AssertionError when there is not one time for each outcome.
        """
        pending = self._pending[:]
        assert len(times) == len(pending), f"{len(times)} times for {len(pending)} steps"
        if not pending:
            return []
        rows = [self._row(o, values, t) for o, values, t in zip(pending, _values(pending), times, strict=True)]
        self._pending.clear()
        return rows

    def state_dict(self) -> dict[str, Any]:
        """The totals; drain first. Raises: AssertionError when outcomes wait."""
        assert not self._pending, f"{len(self._pending)} steps are not drained"
        return asdict(self.totals)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.totals = Totals(**{f.name: state[f.name] for f in fields(Totals) if f.name in state})
        self._pending.clear()

    def _row(self, outcome: Outcome, values: Sequence[float], time: StepTime) -> StepRow:
        loss_sum, norm, scale, found = values
        before, applied = self.totals.update, found == 0
        step, loss, lr = self.totals.step + 1, loss_sum / outcome.count, self._rate_at(before)
        # in the order of its fields: by name it takes twice as long
        row = StepRow(step, before + applied, applied, loss, lr, norm, scale, outcome.samples, *time)
        self.totals.count(row)
        return row


def _values(pending: Sequence[Outcome]) -> list[list[float]]:
    """Loss sum, norm, scale and found of each step."""
    tensors = [t for o in pending for t in (o.loss_sum, o.norm, o.scale, o.found)]
    table: list[list[float]] = torch.stack(tensors).view(len(pending), 4).cpu().tolist()
    return table
