"""The norm of a gradient: right where float32's squares overflow, and without a copy where a step is skipped."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mpt.telemetry.storages import StorageMeter
from mpt.train.norm import norms


def gradients(*worst: float, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(64, 33).to(dtype), torch.randn(4096).to(dtype), torch.zeros(0, dtype=dtype)]
    for i, number in enumerate(worst):
        made[i][0] = number
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("worst", [(), (3e38,), (1e30, 2e30)], ids=str)
def test_a_finite_norm_is_that_of_float64(worst: tuple[float, ...], dtype: torch.dtype) -> None:
    grads = gradients(*worst, dtype=dtype)
    norm, parts = norms(grads)
    wanted = torch.stack([g.double().norm() for g in grads])
    held = wanted.norm().clamp_max(torch.finfo(torch.float32).max).item()
    # Sums of n squares in float32 are off by n units of its last place at most; float64 adds nothing to that.
    assert norm.item() == pytest.approx(held, rel=4096 * 2**-24)
    torch.testing.assert_close(parts.double(), wanted, rtol=4096 * 2**-24, atol=0)


@pytest.mark.parametrize("worst", [(math.inf,), (-math.inf, 1e30), (1e30, math.nan), (math.nan, math.inf)], ids=str)
def test_each_tensor_with_an_element_that_is_none_says_which_and_no_other_does(worst: tuple[float, ...]) -> None:
    grads = gradients(*worst)
    norm, parts = norms(grads)
    wanted = torch.stack([g.double().norm() for g in grads])
    assert not norm.isfinite()
    torch.testing.assert_close(parts.double(), wanted, rtol=4096 * 2**-24, atol=0, equal_nan=True)


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_skipped_steps_norm_holds_no_copy_of_a_gradient(number: float) -> None:
    grads = gradients(number, number)
    with StorageMeter() as meter:
        norms(grads)
    assert meter.peak_bytes < grads[1].nbytes / 16
