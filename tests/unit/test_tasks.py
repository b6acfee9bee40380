"""Losses against torch in float64, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mpt.errors import ConfigError, ModelError
from mpt.tasks import classification, language_modeling
from mpt.tasks._safety import LOSSES, UNSAFE_IN_HALF
from mpt.types import Batch, DataSpec

IMAGES = DataSpec("made up", "images", (1, 4, 4), 5, 10, 10, (), "")
TOKENS = DataSpec("made up", "tokens", (6,), 5, 10, 10, (), "")


def batch_of(n: int) -> Batch:
    return Batch(torch.zeros(n), torch.arange(n) % 5)


def reference(loss: str, output: Tensor, targets: Tensor) -> Tensor:
    """torch's mean reduction in float64."""
    output, one_hot = output.double(), F.one_hot(targets, 5).double()
    means = {
        "cross_entropy": lambda: F.cross_entropy(output, targets),
        "nll": lambda: F.nll_loss(output, targets),
        "mse": lambda: F.mse_loss(output, one_hot),
        "bce": lambda: F.binary_cross_entropy(output, one_hot),
        "bce_with_logits": lambda: F.binary_cross_entropy_with_logits(output, one_hot),
    }
    return means[loss]()


def output_for(loss: str, n: int) -> Tensor:
    logits = torch.randn(n, 5, generator=torch.Generator().manual_seed(1))
    return {"bce": logits.sigmoid(), "nll": logits.log_softmax(-1)}.get(loss, logits)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_divided_by_its_count_is_torchs_mean(loss: str) -> None:
    task, batch = classification.build({"loss": loss}, IMAGES), batch_of(33)
    output = output_for(loss, 33)
    task.check(output, batch)
    measured = task.loss_sum(output, batch).double() / task.count(batch)
    expected = reference(loss, output, batch.targets)
    # At most 165 float32 terms, each off by a few roundings of 2^-24 and summed.
    assert abs(measured - expected) <= 200 * 2.0**-24 * expected


def test_label_smoothing_is_torchs() -> None:
    task, batch = classification.build({"label_smoothing": 0.1}, IMAGES), batch_of(9)
    output = output_for("cross_entropy", 9)
    expected = F.cross_entropy(output, batch.targets, reduction="sum", label_smoothing=0.1)
    assert torch.equal(task.loss_sum(output, batch), expected)


def test_accuracy_counts_right_answers_exactly_beyond_float32() -> None:
    """2^24 + 1 is the first whole number that float32 has not."""
    task = classification.build({}, IMAGES)
    sums = task.sums(F.one_hot(torch.arange(9) % 5, 5).float(), batch_of(9))
    assert sums.dtype == torch.float64
    total = sums + torch.tensor([2.0**24 - 8, 0.0], dtype=torch.float64)
    assert task.metrics(total.tolist(), 2**24 + 1)["accuracy"] == 1.0


@pytest.mark.parametrize("loss", ["bce", "nll"])
def test_logits_are_refused_where_probabilities_are_wanted(loss: str) -> None:
    task = classification.build({"loss": loss}, IMAGES)
    with pytest.raises(ModelError, match=r"task\.loss: got `(bce|nll)`, which takes .*probabilities") as refused:
        task.check(output_for("cross_entropy", 9), batch_of(9))
    assert "which takes logits" in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probabilities_rounded_to_half_precision_still_pass(dtype: torch.dtype) -> None:
    classification.build({"loss": "nll"}, IMAGES).check(output_for("nll", 50).to(dtype), batch_of(50))


def test_unknown_losses_and_useless_smoothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean `cross_entropy`"):
        classification.build({"loss": "crossentropy"}, IMAGES)
    with pytest.raises(ConfigError, match=r"task\.label_smoothing: task\.loss=`mse` has none"):
        classification.build({"loss": "mse", "label_smoothing": 0.1}, IMAGES)
    with pytest.raises(ConfigError, match=r"task\.label_smoothing: got 1\.5"):
        classification.build({"label_smoothing": 1.5}, IMAGES)


def test_what_is_unsafe_in_half_is_a_loss_that_exists() -> None:
    assert set(LOSSES) >= UNSAFE_IN_HALF == {"bce"}


def test_perplexity_is_the_exponential_of_the_loss_and_never_an_exception() -> None:
    task = language_modeling.build({}, TOKENS)
    assert task.metrics([12 * math.log(5)], 12)["perplexity"] == pytest.approx(5, rel=1e-12)
    assert task.metrics([1e6], 1) == {"perplexity": math.inf, "loss": 1e6}
    assert math.isnan(task.metrics([math.nan], 1)["perplexity"])


def test_language_modelling_needs_tokens() -> None:
    with pytest.raises(ModelError, match="task, data"):
        language_modeling.build({}, IMAGES)
