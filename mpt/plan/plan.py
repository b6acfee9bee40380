"""What will happen: decided before anything is built on the device, complete and JSON-able."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from mpt.config._update import rounds_stochastically
from mpt.config.schema import RunConfig
from mpt.precision.capability import Mechanism
from mpt.precision.low.settings import low_bit
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


_GPT2_VOCABULARY = 50257
_ROUNDED = 0.01
"""By how much a model may be larger or smaller than its name says: 124,439,808 are called 124M."""

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


def notes(
    cfg: RunConfig,
    mechanism: Mechanism,
    data: DataSpec,
    steps: int,
    params: int,
    reads_device: bool,
    resident: bool,
    device: str,
) -> tuple[str, ...]:
    """What is not obvious from the configuration, a sentence each."""
    told = _other_vocabulary(cfg, data, params)
    if mechanism.how == "emulated":
        told.append(f"{mechanism.compute} is emulated here: its numerics are real, its speed says nothing")
        if cfg.trainer.compile:
            told.append("trainer.compile has no effect: emulated formats run eagerly")
    if cfg.trainer.cuda_graphs and device != "cuda":
        told.append(f"trainer.cuda_graphs has no effect: the device is {device}, and only CUDA has graphs of kernels")
    if mechanism.low:
        told += _low_bit_notes(cfg, mechanism)
    elif low_bit(cfg.precision) is not None:
        what = f"no layer takes {cfg.precision.name}, all is {mechanism.compute}"
        told.append(f"{what}: the table of `mpt plan` says why for each")
    if data.kind == "images" and data.num_classes == 1:
        told.append("there is one class: any answer is right, the loss is 0, and nothing can be learned")
    if cfg.schedule.warmup >= steps:
        told.append(f"the warm-up of {cfg.schedule.warmup} updates is not over when the run ends: {steps} steps")
    if reads_device:
        told.append(f"optimizer={cfg.optimizer.name} has no fused kernel here: one read of the device in each step")
    if cfg.optimizer.options.get("eps", 0) is None and cfg.precision.moment == "float16":
        told.append("optimizer.eps is 2^-12: smaller ones vanish beside float16 moments")
    if cfg.precision.master is None and cfg.precision.param != "float32":
        told.append(_no_master(cfg))
    if cfg.scaling.name == "none" and cfg.precision.compute == "float16":
        told.append("float16 gradients without loss scaling: the share that becomes zero is measured")
    idle = [f"data.workers={cfg.data.workers}"] if cfg.data.workers else []
    idle += ["data.on_error=skip"] if cfg.data.on_error == "skip" else []
    if resident and idle:
        told.append(f"without effect: {' and '.join(idle)}; {data.name} is read whole before the run")
    if data.synthetic:
        told.append("synthetic data: for speed measurements, nothing can be learned from it")
    if cfg.distributed.name != "none":
        told.append(f"distributed={cfg.distributed.name} is predicted: this version trains with one process")
    if cfg.plugins:
        told.append("runs code of yours: plugins " + ", ".join(cfg.plugins))
    for group, options in (("model", cfg.model.options), ("data", cfg.data.options)):
        if options.get("path"):
            told.append(f"runs code of yours: {group}.path {options['path']}")
    return tuple(told)


def _other_vocabulary(cfg: RunConfig, data: DataSpec, params: int) -> list[str]:
    """Why a language model that is named by its size has another, where GPT-2's vocabulary would give that one."""
    name, width = re.fullmatch(r".*-(\d+)m", cfg.model.choice), cfg.model.options.get("width")
    if name is None or data.kind != "tokens" or not isinstance(width, int) or data.num_classes == _GPT2_VOCABULARY:
        return []
    named = 10**6 * int(name[1])
    if abs(params + (_GPT2_VOCABULARY - data.num_classes) * width - named) > _ROUNDED * named:
        return []
    vocabulary = f"the {name[1]}M of its name are with GPT-2's {_GPT2_VOCABULARY:,}"
    return [f"{params / 1e6:.0f}M parameters, as {data.name} has a vocabulary of {data.num_classes:,}: {vocabulary}"]


def _no_master(cfg: RunConfig) -> str:
    stored = f"weights are stored in {cfg.precision.param} without a float32 master copy"
    if rounds_stochastically(cfg.precision):
        return (
            f"{stored}: updates are rounded stochastically, kept on average; the share of weights that stay is measured"
        )
    return f"{stored}: small updates are lost, and their share is measured"


def _low_bit_notes(cfg: RunConfig, mechanism: Mechanism) -> list[str]:
    told = []
    if mechanism.low_how == "emulated":
        told.append(f"{mechanism.low} is emulated here: its numerics are real, its speed says nothing")
    if cfg.trainer.compile and mechanism.how != "emulated" and mechanism.low_how == "emulated":
        told.append("trainer.compile has no effect: emulated formats run eagerly")
    if "floor" in mechanism.scale_rules:
        told.append(
            "scales by `floor` saturate the top of each block, and stochastic rounding can't make up for it: in e2m1 "
            "gradients shrink by 2 to 4 %, and a small GPT ended at a loss of 2.72 where `rceil` gave 2.57; training "
            "of billions of weights in e4m3 has diverged by it"
        )
    return told
