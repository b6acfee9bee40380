"""Nets whose ops have no half kernel, or no accuracy in half: they train, with those ops in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mpt.errors import PrecisionError
from tests.unit._precision_kit import HALF, Block, built, policy_config


class Whitening(nn.Module):
    """Linear algebra on activations: a determinant, a Cholesky factor and a solve."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        covariance = x.t() @ x + torch.eye(4)
        factor = torch.linalg.cholesky(covariance)
        white = torch.linalg.solve_triangular(factor, x.t().to(factor.dtype), upper=False)
        return self.head(white.t()) + torch.linalg.det(covariance).log()


class Spectral(nn.Module):
    """An FFT fed with half activations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 10)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.rfft(self.embed(x)).abs())


class Summed(nn.Module):
    """A sum that passes what float16 holds."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 100)

    def forward(self, x: Tensor) -> Tensor:
        return (self.lin(x).relu() + 100).repeat(1, 100).sum()


class Probability(nn.Module):
    """A sigmoid and binary cross-entropy inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.binary_cross_entropy(torch.sigmoid(self.lin(x)), torch.ones(len(x), 1))


class Shared(nn.Module):
    """One block used twice, recomputed in backward or not."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.block = Block(8)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)[None]
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=False) if self.recompute else self.block(x)
        return x


def trained(model: nn.Module, policy: object, x: Tensor) -> Tensor:
    with policy.forward():  # type: ignore[attr-defined]
        out = model(x)
    with policy.backward():  # type: ignore[attr-defined]
        out.float().mean().backward()
    return out


@pytest.mark.parametrize("name", [*HALF, "tf32"])
@pytest.mark.parametrize("make", [Whitening, Spectral, Summed])
def test_ops_without_half_accuracy_run_in_float32_and_train(make: type[nn.Module], name: str) -> None:
    model, policy, _ = built(make, policy_config(name))
    out = trained(model, policy, torch.rand(5, 6, generator=torch.Generator().manual_seed(0)))
    assert out.isfinite().all()
    for p in model.parameters():
        assert p.grad is not None
        assert p.grad.isfinite().all()


def test_a_sum_past_half_range_is_right() -> None:
    model, policy, _ = built(Summed, policy_config("fp16"))
    with policy.forward():
        total = model(torch.zeros(10, 6))
    assert total.dtype == torch.float32
    assert 1e7 <= total.item() < 1.1e7


@pytest.mark.parametrize("name", HALF)
def test_an_unsafe_loss_in_the_model_is_refused_on_this_device_too(name: str) -> None:
    model, policy, _ = built(Probability, policy_config(name))
    with pytest.raises(PrecisionError, match="binary_cross_entropy_with_logits"), policy.forward():
        model(torch.rand(2, 6))
    assert not torch.is_autocast_enabled("cpu")


def test_the_same_loss_in_float32_is_none_of_our_business() -> None:
    model, policy, _ = built(Probability, policy_config("fp32"))
    assert trained(model, policy, torch.rand(2, 6)).isfinite()


@pytest.mark.parametrize("name", [*HALF, "tf32"])
def test_a_block_that_is_shared_and_recomputed_has_the_gradients_of_one_that_is_not(name: str) -> None:
    x = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))
    grads = []
    for recompute in (False, True):
        model, policy, _ = built(lambda r=recompute: Shared(r), policy_config(name))
        trained(model, policy, x)
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
