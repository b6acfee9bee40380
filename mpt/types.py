"""Values that layers hand to one another. Nothing here imports torch at run time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

DataKind = Literal["images", "tokens"]


class Batch(NamedTuple):
    """One micro-batch on the training device.

    Shapes: images: inputs B,C,H,W (users' features: B,F) floating, targets B int64; tokens: inputs and
    targets B,L int64.
    """

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class InputSpec:
    """What a model takes: data sets adapt to it.

    `kind` None: either (a user's own model). `channels` None: any. `size` None: any size of at least
    `min_size` pixels.
    """

    kind: DataKind | None
    channels: int | None = None
    size: int | None = None
    min_size: int = 1
    context: int | None = None


@dataclass(frozen=True)
class DataSpec:
    """What the data are, after they were adapted to the model's InputSpec.

    `shape` is (C, H, W) of one image, (F,) of one row of users' features (`kind` images too: one class for each
    sample), or (L,) of one token window; `num_classes` is the
    vocabulary's size for tokens. `fingerprint` identifies content, split and order.
    """

    name: str
    kind: DataKind
    shape: tuple[int, ...]
    num_classes: int
    n_train: int
    n_eval: int
    classes: tuple[str, ...]
    fingerprint: str
    synthetic: bool = False


@dataclass(frozen=True)
class DeviceFacts:
    """What is known of a device and the software on it; can be made by hand for an absent one.

    `type` is cpu, cuda or mps. `capability` is CUDA's (major, minor), None elsewhere. `features` holds
    CPU flags that matter to number formats (`avx512_bf16`, `amx_bf16`, `avx512_fp16`). `torchao` is its version,
    None where it is not installed.
    """

    type: str
    name: str
    torch: str
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    features: tuple[str, ...] = ()
    index: int = 0
    torchao: str | None = None


@dataclass(frozen=True)
class FormatSupport:
    """Whether `format` runs natively on a device, and why."""

    format: str
    how: Literal["native", "emulated"]
    reason: str


@dataclass(frozen=True)
class ModuleRow:
    """What one module will compute in (plan), by role, and why.

    `kind` is gemm, attention, norm, embedding, composite or other; a `follows` format means that of its input.
    """

    name: str
    type: str
    kind: str
    params: int
    param: str
    compute: str
    how: Literal["native", "emulated", "follows"]
    reason: str


@dataclass(frozen=True)
class AuditRow:
    """What one module was seen computing in: operand and result formats of its GEMMs or its ops."""

    name: str
    planned: str
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    matches: bool
    note: str = ""


@dataclass(frozen=True)
class Audit:
    """Planned against observed formats of a whole model; `misfits` are the notes on numbers that a format lost."""

    verdict: Literal["match", "differs"]
    rows: tuple[AuditRow, ...]
    loss_format: str
    notes: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()


class StepRow(NamedTuple):
    """One line of steps.jsonl, in its order. Loss and norm are unscaled; times are in seconds."""

    step: int
    update: int
    applied: bool
    loss: float
    lr: float
    grad_norm: float
    scale: float
    samples: int
    time_s: float
    data_wait_s: float


@dataclass(frozen=True)
class Unmeasured:
    """Why a figure is null; `x.reason` is written beside the null."""

    reason: str


@dataclass
class Snapshot:
    """What the console shows at a log point."""

    step: int
    total_steps: int
    update: int
    epoch: float
    loss: float
    lr: float
    scale: float
    skipped: int
    samples_per_s: float | None
    memory_bytes: int | None
    eta_s: float | None
    extra: dict[str, Any] = field(default_factory=dict)
