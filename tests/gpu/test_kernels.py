"""Formats as the hardware multiplies them, against float64 and the formats' own bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mpt.formats.table import format_of
from mpt.precision.probe import probe
from tests.gpu._gpu_kit import DEVICE, GPT, Kit

SIZE = 256
CHANNELS = 64
EPS32 = 2.0**-24
JUST_ABOVE_ONE = 1 + 2.0**-12
"""Exact in float32; TF32, which has ten bits of mantissa, makes it 1."""

Product = Callable[[Tensor, Tensor], Tensor]


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_products_accumulate_in_float32_and_round_once(precision: str) -> None:
    kit = Kit(f"precision={precision}", *GPT)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    left, right = normal(SIZE, SIZE, seed=1), normal(SIZE, SIZE, seed=2)
    with kit.switched(), kit.run.policy.forward():
        got = left @ right
    assert got.dtype is dtype
    a, b = left.to(dtype).double(), right.to(dtype).double()
    exact, size = a @ b, a.abs() @ b.abs()
    half = format_of(str(dtype).removeprefix("torch.")).unit_roundoff
    bound = 2 * SIZE * EPS32 * size + half * (exact.abs() + 2 * SIZE * EPS32 * size)
    assert bool(((got.double() - exact).abs() <= bound).all())


@pytest.mark.cuda_only
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_formats_that_the_gpu_has_are_native(precision: str) -> None:
    kit = Kit(f"precision={precision}", *GPT)
    if torch.cuda.get_device_capability() < (8, 0) and precision != "fp16":
        pytest.skip("bfloat16 and TF32 came with compute capability 8.0")
    assert kit.run.plan.mechanism.how == "native"


def matmul(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def conv(x: Tensor, y: Tensor) -> Tensor:
    """Large enough for cuDNN to prefer tensor cores where it may use them."""
    filters = y.flatten()[: 9 * CHANNELS * CHANNELS].reshape(CHANNELS, CHANNELS, 3, 3)
    return F.conv2d(x.reshape(-1, CHANNELS, 16, 16).repeat(16, 1, 1, 1), filters)


def relative_error(multiply: Product) -> float:
    """Of sums of equal products, each (1 + 2^-12)^2: nothing can cancel, so a bound is a proof."""
    ones = torch.full((SIZE, SIZE), JUST_ABOVE_ONE, device=DEVICE)
    got = multiply(ones, ones)
    exact = multiply(ones.cpu().double(), ones.cpu().double())
    return float(((got.cpu().double() - exact) / exact).abs().max())


# A matmul's sum of n products of relative error u each is off by n · u at most. Convolutions may go by transforms,
# which err by more: a quarter of what TF32 is off by tells the two apart.
FLOAT32_BOUNDS = {"matmul": SIZE * EPS32, "conv": 2.0**-13}
PRODUCTS = {"matmul": matmul, "conv": conv}


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_float32_operands_are_multiplied_in_ieee_float32_unless_tf32_is_asked_for(precision: str, kind: str) -> None:
    kit = Kit(f"precision={precision}", *GPT)
    with kit.switched():
        assert relative_error(PRODUCTS[kind]) <= FLOAT32_BOUNDS[kind]


@pytest.mark.cuda_only
@pytest.mark.parametrize("kind", PRODUCTS)
def test_tf32_is_on_for_both_kinds_of_product_when_asked_for_and_off_again_afterwards(kind: str) -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 came with compute capability 8.0")
    kit = Kit("precision=tf32", *GPT)
    with kit.switched():
        error = relative_error(PRODUCTS[kind])
        # 1 + 2^-12 became 1: the product is off by 2^-11, and sums in float32 hardly change that
        assert 2.0**-12 <= error <= 2.0**-10
    with Kit("precision=fp32", *GPT).switched():
        assert relative_error(PRODUCTS[kind]) <= FLOAT32_BOUNDS[kind]


@pytest.mark.cuda_only
@pytest.mark.parametrize(("precision", "wanted"), [("fp32", {"float32"}), ("tf32", {"tfloat32", "float32"})])
def test_the_probe_in_the_record_finds_the_format_that_was_asked_for(precision: str, wanted: set[str]) -> None:
    kit = Kit(f"precision={precision}", *GPT)
    if precision == "tf32" and kit.run.plan.mechanism.emulated:
        pytest.skip("TF32 came with compute capability 8.0")
    with kit.switched():
        found = probe(DEVICE)
    assert found["matmul"]["format"] == {"fp32": "float32", "tf32": "tfloat32"}[precision]
    assert found["conv"]["format"] in wanted  # cuDNN may take a float32 kernel where TF32 is allowed
