"""Epsilon by the format of the moments: gradients whose squares vanish in it do not blow up the update."""

from __future__ import annotations

import pytest
import torch

from mpt.config.compose import compose
from mpt.optim import build_optimizer

LR = 2.0**-10
TINY = 1e-4  # its square, 1e-8, is under half of float16's least number


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "adagrad"])
@pytest.mark.parametrize("fused", ["auto", "false"])
def test_a_gradient_whose_square_float16_stores_as_0_moves_a_weight_by_no_more_than_the_rate(
    name: str, fused: str
) -> None:
    weight = torch.zeros(8, dtype=torch.float16)
    cfg = compose([f"optimizer={name}", "optimizer.weight_decay=0", f"optimizer.fused={fused}"]).optimizer
    optimizer = build_optimizer(cfg, [weight], "float16")
    for _ in range(3):
        grad = torch.full_like(weight, TINY)
        optimizer.step([grad], torch.tensor(LR), torch.tensor(1.0), torch.tensor(0.0))
    assert weight.isfinite().all()
    assert (weight != 0).all()
    assert weight.abs().max() <= 3 * LR


@pytest.mark.parametrize(("name", "theirs"), [("rmsprop", "RMSprop"), ("adagrad", "Adagrad")])
def test_with_float32_moments_the_update_is_torchs_own_default(name: str, theirs: str) -> None:
    start = torch.linspace(-1, 1, 8)
    mine, want = start.clone(), torch.nn.Parameter(start.clone())
    cfg = compose([f"optimizer={name}", "optimizer.weight_decay=0"]).optimizer
    optimizer = build_optimizer(cfg, [mine], "float32")
    reference = getattr(torch.optim, theirs)([want], lr=LR)
    for i in range(3):
        grad = torch.linspace(1e-9, 10.0**-i, 8)
        want.grad = grad.clone()
        reference.step()
        optimizer.step([grad.clone()], torch.tensor(LR), torch.tensor(1.0), torch.tensor(0.0))
    assert torch.equal(mine, want.detach())
