"""The next token at each position: perplexity, and cross entropy computed in float32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from mpt.config.options import merged
from mpt.errors import ModelError, Problem
from mpt.tasks._checks import counting_dtype, require_output
from mpt.types import Batch, DataSpec

# exp overflows above 709.78; a loss that large has no perplexity to tell.
LARGEST_EXPONENT = 709.0


def build(options: Mapping[str, Any], data: DataSpec) -> LanguageModeling:
    """A task over the data's vocabulary.

    Raises: ConfigError for an option (there is none); ModelError for data that are not tokens.
    """
    merged("task", options, {})
    if data.kind != "tokens":
        what = f"`language_modeling` needs tokens, but data=`{data.name}` gives {data.kind}"
        raise ModelError(Problem("task, data", what, "use task=classification or data=shakespeare"))
    return LanguageModeling(data.num_classes)


@dataclass(frozen=True)
class LanguageModeling:
    """Shapes: output B,L,vocabulary; targets B,L."""

    vocabulary: int
    name: ClassVar[str] = "language_modeling"
    headline: ClassVar[str] = "loss"
    mode: ClassVar[Literal["min", "max"]] = "min"

    def count(self, batch: Batch) -> int:
        """Tokens that are predicted."""
        return batch.targets.numel()

    def check(self, output: object, batch: Batch) -> None:
        """Raises: ModelError when the output is not one row of logits for each target."""
        require_output(output, (*batch.targets.shape, self.vocabulary), "samples, positions, vocabulary")

    def loss_sum(self, output: Tensor, batch: Batch) -> Tensor:
        """Cross entropy in float32 (nats), summed over tokens."""
        return F.cross_entropy(output.float().flatten(0, 1), batch.targets.flatten(), reduction="sum")

    def sums(self, output: Tensor, batch: Batch) -> Tensor:
        """Summed loss of the batch, on the device."""
        return self.loss_sum(output, batch).to(counting_dtype(output.device)).unsqueeze(0)

    def metrics(self, sums: list[float], count: int) -> dict[str, float]:
        """Mean loss in nats a token, and its exponential; NaN stays NaN."""
        loss = sums[0] / count
        return {"perplexity": math.exp(loss) if not loss > LARGEST_EXPONENT else math.inf, "loss": loss}
