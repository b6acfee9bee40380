"""What will happen: decided before anything is built on the device, complete and JSON-able."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from mpt.config.schema import RunConfig
from mpt.precision.capability import Mechanism
from mpt.types import DataSpec, DeviceFacts, ModuleRow
from mpt.units import counted, epochs_text


@dataclass(frozen=True)
class Length:
    """How long a run is. `micro` counts micro-batches of one rank, `steps` attempts."""

    batches_per_epoch: int
    accumulate: int
    steps: int
    micro: int

    @property
    def epochs(self) -> float:
        return self.micro / self.batches_per_epoch

    def window(self, step: int) -> int:
        """Micro-batches in attempt `step` (0-based): `accumulate`, or what is left at the very end."""
        return min(self.accumulate, self.micro - step * self.accumulate)

    def micros(self, step: int) -> range:
        """The micro-batches of attempt `step` (0-based)."""
        first = step * self.accumulate
        return range(first, first + self.window(step))

    def epochs_at(self, step: int) -> float:
        """Passes over the data after `step` attempts."""
        return min(step * self.accumulate, self.micro) / self.batches_per_epoch

    def epochs_done(self, step: int) -> int:
        """Whole passes over the data after `step` attempts."""
        return int(self.epochs_at(step))

    def first_step_of_epoch(self, epoch: int) -> int:
        """Attempts after which `epoch` passes are complete."""
        return math.ceil(epoch * self.batches_per_epoch / self.accumulate)


DEFAULT_EPOCHS = 10
LARGE_PARAMS, LARGE_EPOCHS = 10_000_000, 4
"""A run whose length nobody gave is there to be looked at: a large model gets fewer passes."""


def length(cfg: RunConfig, batches_per_epoch: int, params: int) -> Length:
    """The run's length from max_epochs and max_steps; the first that is reached ends it.

    Windows of micro-batches run on across epochs, so an epoch shorter than a window is no special case;
    the last window of a run limited by epochs may be shorter.
    """
    trainer, accumulate = cfg.trainer, cfg.trainer.accumulate
    epochs = trainer.max_epochs
    if epochs is None and trainer.max_steps is None:
        epochs = LARGE_EPOCHS if params > LARGE_PARAMS else DEFAULT_EPOCHS
    limits = []
    if epochs is not None:
        limits.append(math.ceil(epochs * batches_per_epoch))
    if trainer.max_steps is not None:
        limits.append(trainer.max_steps * accumulate)
    micro = max(min(limits), 1)
    return Length(batches_per_epoch, accumulate, math.ceil(micro / accumulate), micro)


_UNIT = {"images": "numbers", "tokens": "tokens"}


@dataclass(frozen=True)
class Plan:
    """The decided run. `notes` are sentences a user should read before it starts; `data_bytes` stay on the device."""

    name: str
    model: str
    params: int
    device: DeviceFacts
    precision: str
    mechanism: Mechanism
    rows: tuple[ModuleRow, ...]
    data: DataSpec
    task: str
    length: Length
    batch_size: int
    scaling: str
    optimizer: str
    schedule: str
    seed: int
    fingerprint: str
    data_bytes: int
    notes: tuple[str, ...] = ()
    processes: int = 1
    recomputed: tuple[str, ...] = ()
    """Names of the modules whose activations are computed again in the backward pass."""

    def to_json(self) -> dict[str, Any]:
        """Plain containers, for plan.json and `mpt plan --json`."""
        return {
            "schema": "mpt.plan/1",
            **asdict(self),
            "predicted": {"peak_bytes": None, "peak_bytes_reason": "`mpt plan` predicts"},
        }

    def lines(self) -> list[str]:
        """What a user sees first: asked and effective precision, device, sizes."""
        m = self.mechanism
        each = f"{'×'.join(map(str, self.data.shape))} {_UNIT[self.data.kind]}"
        return [
            f"{self.model} on {self.data.name}: {self.params:,} parameters, "
            f"{self.data.n_train:,} training and {self.data.n_eval:,} evaluation samples of {each}",
            f"precision {self.precision}: compute {m.compute} {m.how} on {self.device.name} ({m.reason})",
            *self._low_bit(),
            *self._attention(),
            *self._recomputed(),
            f"{counted(self.length.steps, 'step')} of {self._samples()}, "
            f"{epochs_text(self.length.epochs)}; {self.optimizer}; schedule {self.schedule}; scaling {self.scaling}",
            *self.notes,
        ]

    def _samples(self) -> str:
        each = f"{self.length.accumulate} × {self.batch_size} samples"
        return each if self.processes == 1 else f"{each} in each of {self.processes} processes"

    def _attention(self) -> list[str]:
        """How many modules attend with low-bit operands."""
        rows = [row for row in self.rows if row.kind == "attention"]
        labels = ", ".join(dict.fromkeys(row.compute for row in rows))
        return [f"attention with operands {labels} emulated in {len(rows)} of the modules"] if rows else []

    def _recomputed(self) -> list[str]:
        """Whose activations are not kept."""
        names = self.recomputed
        if not names:
            return []
        shown = ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]}, … {names[-1]}"
        return [f"activations of {counted(len(names), 'module')} are computed again in the backward pass: {shown}"]

    def _low_bit(self) -> list[str]:
        """How many of the layers that multiply are low-bit, and how."""
        m = self.mechanism
        if not m.low:
            return []
        layers = [row for row in self.rows if row.kind == "gemm"]
        low = [row for row in layers if row.compute not in (m.compute, "float32")]
        counts = {how: sum(row.how == how for row in low) for how in ("native", "emulated")}
        how = " and ".join(f"{how} in {n}" for how, n in counts.items() if n) or f"{m.low_how} in 0"
        return [f"operands {m.low} {how} of {len(layers)} layers that multiply ({m.low_reason})"]
