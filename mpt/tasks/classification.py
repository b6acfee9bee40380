"""One class for each sample: accuracy, and a choice of losses computed in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mpt.config.options import merged
from mpt.errors import ConfigError, ModelError, Problem
from mpt.registry import did_you_mean
from mpt.tasks._checks import counting_dtype, require_output
from mpt.tasks._safety import LOSSES
from mpt.types import Batch, DataSpec

DEFAULTS = {"loss": "cross_entropy", "label_smoothing": 0.0}
# How far a row of probabilities may sum from 1: bfloat16 keeps 8 bits.
SUM_TOLERANCE = 2.0**-6

Loss = Callable[[Tensor, Tensor], Tensor]


def build(options: Mapping[str, Any], data: DataSpec) -> Classification:
    """A task whose loss is named by `options`.

    Raises: ConfigError for an unknown option or loss, or smoothing that the loss has no use for.
    """
    o = merged("task", options, DEFAULTS)
    name, smoothing = o["loss"], o["label_smoothing"]
    if name not in LOSSES:
        raise ConfigError(Problem("task.loss", f"got `{name}`", did_you_mean(str(name), LOSSES)))
    if not 0 <= smoothing < 1:
        raise ConfigError(Problem("task.label_smoothing", f"got {smoothing}", "give a number from 0 up to 1"))
    if smoothing and name != "cross_entropy":
        raise ConfigError(Problem("task.label_smoothing", f"task.loss=`{name}` has none", "use loss=cross_entropy"))
    return Classification(data.num_classes, name, _loss(name, data.num_classes, smoothing))


def _loss(name: str, classes: int, smoothing: float) -> Loss:
    """The sum over samples of what torch's mean reduction averages."""
    if name == "cross_entropy":
        return partial(F.cross_entropy, reduction="sum", label_smoothing=smoothing)
    if name == "nll":
        return partial(F.nll_loss, reduction="sum")
    by_name: dict[str, Callable[..., Tensor]] = {
        "mse": F.mse_loss,
        "bce": F.binary_cross_entropy,
        "bce_with_logits": F.binary_cross_entropy_with_logits,
    }
    elementwise = by_name[name]

    def one_hot_loss(output: Tensor, targets: Tensor) -> Tensor:
        # F.one_hot looks at the classes' extremes on the host, twice a step.
        one_hot = torch.zeros_like(output).scatter_(-1, targets.unsqueeze(-1), 1.0)
        return elementwise(output, one_hot, reduction="sum") / classes

    return one_hot_loss


@dataclass(frozen=True)
class Classification:
    """Shapes: output B,num_classes; targets B."""

    num_classes: int
    loss: str
    _loss: Loss
    name: ClassVar[str] = "classification"
    headline: ClassVar[str] = "accuracy"
    mode: ClassVar[Literal["min", "max"]] = "max"

    def count(self, batch: Batch) -> int:
        """Targets in the batch."""
        return batch.targets.numel()

    def check(self, output: object, batch: Batch) -> None:
        """Reads the output on the host; called before training, not in it.

        Raises: ModelError when the output does not fit the data's classes, or is not what the loss takes.
        """
        logits = require_output(output, (len(batch.targets), self.num_classes), "samples, classes")
        if self.loss in ("bce", "nll"):
            _require_probabilities(self.loss, logits.detach().float())

    def loss_sum(self, output: Tensor, batch: Batch) -> Tensor:
        """The loss in float32, summed over samples."""
        return self._loss(output.float(), batch.targets)

    def sums(self, output: Tensor, batch: Batch) -> Tensor:
        """Correct predictions and summed loss of the batch, on the device."""
        dtype = counting_dtype(output.device)
        correct = (output.argmax(-1) == batch.targets).sum()
        return torch.stack((correct.to(dtype), self.loss_sum(output, batch).to(dtype)))

    def metrics(self, sums: list[float], count: int) -> dict[str, float]:
        """Accuracy (0–1) and mean loss."""
        return {"accuracy": sums[0] / count, "loss": sums[1] / count}


def _require_probabilities(loss: str, output: Tensor) -> None:
    if loss == "bce":
        fits, wants, use = bool(((output >= 0) & (output <= 1)).all()), "probabilities (0–1)", "bce_with_logits"
    else:
        total = output.double().exp().sum(-1)
        fits, wants, use = bool(((total - 1).abs() <= SUM_TOLERANCE).all()), "log-probabilities", "cross_entropy"
    if not fits:
        what = f"got `{loss}`, which takes {wants}, but the output ranges from {output.min():.3g} to {output.max():.3g}"
        raise ModelError(Problem("task.loss", what, f"use task.loss={use}, which takes logits"))
