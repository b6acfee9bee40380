"""Shared scales against torchao bit by bit, the transform, operands as text, and what a format costs a tensor."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from mpt.errors import PrecisionError
from mpt.formats.blocks import mx, mx_exponents, nv, powers, quantise_mx, quantise_nv
from mpt.formats.hadamard import hadamard_matrix, rotate_first
from mpt.formats.measure import measure
from mpt.formats.operand import gemms_of, parse
from mpt.formats.quantise import quantise
from mpt.formats.rounding import round_to
from mpt.formats.table import format_of

ELEMENTS = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e3m2": "fp6_e3m2",
    "e2m3": "fp6_e2m3",
    "e2m1": torch.float4_e2m1fn_x2,
}
RULES = ("floor", "rceil", "ceil", "even")


def spread(rows: int = 4096, columns: int = 64, seed: int = 0) -> torch.Tensor:
    """Rows of 120 sizes, some all zero, some with NaN."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-60, 60, (rows, 1), generator=generator)
    x = torch.ldexp(torch.randn(rows, columns, generator=generator), sizes)
    x[:20] = 0
    x[20:30, 3] = math.nan
    return x


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


@pytest.fixture(scope="module")
def mx_tensor():  # type: ignore[no-untyped-def]
    pytest.importorskip("torchao")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats import mx_tensor
    return mx_tensor


@pytest.fixture(scope="module")
def nvfp4():  # type: ignore[no-untyped-def]
    pytest.importorskip("torchao")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats import nvfp4_tensor
    return nvfp4_tensor


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", list(ELEMENTS))
def test_mx_equals_torchao(mx_tensor, name: str, rule: str) -> None:  # type: ignore[no-untyped-def]
    x = spread()
    scales, codes = mx_tensor.to_mx(x, ELEMENTS[name], 32, mx_tensor.ScaleCalculationMode[rule.upper()])
    wanted = mx_tensor.to_dtype(codes, scales, ELEMENTS[name], 32, torch.float32)
    _, exponents = quantise_mx(x, format_of(name), rule)  # type: ignore[arg-type]
    assert torch.equal(exponents.squeeze(-1), scales.view(torch.uint8).int())
    assert same(mx(x, format_of(name), rule), wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nvfp4_equals_torchao(nvfp4, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(1)
    x = torch.ldexp(torch.randn(2048, 64, generator=generator), torch.randint(-6, 3, (2048, 1), generator=generator))
    x = x.to(dtype)
    whole = nvfp4.per_tensor_amax_to_scale(x.abs().amax())
    wanted = nvfp4.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=whole)
    values, scales, scale = quantise_nv(x.float())
    assert torch.equal(scale, whole)
    assert torch.equal(scales.squeeze(-1), wanted.scale.float())
    assert torch.equal(nv(x.float()), wanted.dequantize(torch.float32))
    assert set(values.abs().unique().tolist()) == {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}


def test_mx_exponents_come_from_the_bits_beside_powers_of_two() -> None:
    for k in range(-100, 100):
        below = torch.tensor([2.0**k]).nextafter(torch.tensor(0.0))
        above = torch.tensor([2.0**k]).nextafter(torch.tensor(math.inf))
        largest = torch.cat([below, torch.tensor([2.0**k]), above])
        got = mx_exponents(largest, format_of("e2m1"), "floor") - 127
        assert got.tolist() == [k - 3, k - 2, k - 2]
        got = mx_exponents(largest * 6, format_of("e2m1"), "rceil") - 127
        assert got.tolist() == [k, k, k + 1]


@pytest.mark.parametrize("name", list(ELEMENTS))
def test_rceil_never_saturates_and_floor_does(name: str) -> None:
    row = format_of(name)
    x = torch.rand(4096, 32, generator=torch.Generator().manual_seed(2)) + 1
    for rule, saturates in (("rceil", False), ("ceil", False), ("floor", True)):
        _, codes = quantise_mx(x, row, rule)  # type: ignore[arg-type]
        assert bool(((x / powers(codes).squeeze(-1)).abs() > row.max).any()) is saturates


@pytest.mark.parametrize(("name", "floor", "rceil"), [("e2m1", -0.063, -0.017), ("e4m3", -0.013, -0.001)])
def test_floor_shrinks_the_largest_number_of_a_block(name: str, floor: float, rceil: float) -> None:
    x = torch.randn(20_000, 32, generator=torch.Generator().manual_seed(0))
    at = x.abs().argmax(1, keepdim=True)
    for rule, wanted in (("floor", floor), ("rceil", rceil)):
        got = mx(x, format_of(name), rule).gather(1, at) / x.gather(1, at) - 1  # type: ignore[arg-type]
        assert got.mean().item() == pytest.approx(wanted, abs=0.002)


def test_floor_loses_more_than_rceil_in_e4m3() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 32, generator=draw) * torch.randn(20_000, 32, generator=draw).mul(1.5).exp()
    noise = {rule: (mx(x, format_of("e4m3"), rule) - x).square().sum() for rule in ("floor", "rceil")}  # type: ignore[arg-type]
    assert noise["floor"] > 2 * noise["rceil"]


def test_golden_blocks() -> None:
    x = torch.zeros(1, 32)
    x[0, :4] = torch.tensor([7.0, 1.3, -0.4, 0.2])
    assert mx(x, format_of("e2m1"), "floor")[0, :4].tolist() == [6.0, 1.5, -0.5, 0.0]
    assert mx(x, format_of("e2m1"), "rceil")[0, :4].tolist() == [8.0, 1.0, -0.0, 0.0]
    assert mx(x, format_of("e4m3"), "rceil")[0, :4].tolist() == [7.0, 1.25, -0.40625, 0.203125]
    y = torch.zeros(1, 16)
    y[0, :3] = torch.tensor([6.0, 2.4, -0.7])
    assert nv(y)[0, :3].tolist() == [6.0, 2.0, -0.5]


@pytest.mark.parametrize("text", ["e2m1/mx/square", "e2m1/nv/square", "e4m3/block/square"])
def test_square_blocks_share_a_scale_in_both_directions(text: str) -> None:
    op = parse(text, "x")
    x = torch.randn(256, 128, generator=torch.Generator().manual_seed(0))
    assert torch.equal(quantise(x, op), quantise(x.t(), op).t())
    runs = parse(text.removesuffix("/square"), "x")
    assert not torch.equal(quantise(x, runs), quantise(x.t(), runs).t())


@pytest.mark.parametrize("text", ["e4m3/mx", "e2m1/nv", "e4m3/block", "e2m1/nv/square", "int8/block"])
def test_a_last_block_that_is_not_full_is_as_if_filled_with_zeros(text: str) -> None:
    op = parse(text, "x")
    x = torch.randn(40, 200, generator=torch.Generator().manual_seed(0))
    padded = torch.zeros(48, 256)
    padded[:40, :200] = x
    assert torch.equal(quantise(x, op), quantise(padded, op)[:40, :200])


@pytest.mark.parametrize(("scale", "dim"), [("tensor", None), ("row", 1)])
@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_float8_scales_equal_float64_arithmetic(name: str, scale: str, dim: int | None) -> None:
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(5)) * 1e-5
    row = format_of(name)
    amax = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    factor = (row.max / amax.double()).float()
    wanted = round_to((x * factor).clamp(-row.max, row.max), row) / factor
    got = quantise(x, parse(f"{name}/{scale}", "x"))
    assert torch.equal(got, wanted)
    assert ((got - x).abs() <= x.abs() * row.unit_roundoff * 1.0001 + row.min_subnormal / factor).all()


def test_scales_of_powers_of_two_never_saturate_and_are_exact_to_undo() -> None:
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(5))
    got = quantise(x, parse("e4m3/row/pow2", "x"))
    assert torch.equal(got.bfloat16().float(), got)
    assert (got.abs().amax(1) >= x.abs().amax(1) * (1 - 2.0**-4)).all()


def test_a_delayed_scale_saturates_what_exceeds_its_history() -> None:
    got = quantise(torch.tensor([[1.0, 3.0, -5.0]]), parse("e4m3/delayed", "x"), torch.tensor(2.0))
    assert got.tolist() == [[1.0, 2.0, -2.0]]


def test_integers_are_symmetric_and_round_half_to_even() -> None:
    x = torch.tensor([[127.0, 2.5, 3.5, -127.0, -0.4]])
    assert quantise(x, parse("int8/row", "x")).tolist() == [[127.0, 2.0, 4.0, -127.0, 0.0]]
    assert quantise(x / 127, parse("int4/tensor", "x")).abs().unique().numel() <= 8


@pytest.mark.parametrize("text", ["e4m3/tensor", "e4m3/block", "e4m3/mx", "e2m1/mx/floor", "e2m1/nv", "int8/row"])
def test_what_is_not_finite_stays_so_and_zeros_stay_zeros(text: str) -> None:
    op = parse(text, "x")
    assert torch.equal(quantise(torch.zeros(32, 128), op), torch.zeros(32, 128))
    for odd in (math.inf, -math.inf, math.nan):
        x = torch.ones(32, 128)
        x[1, 2] = odd
        assert not quantise(x, op)[1, 2].isfinite()


def test_stochastic_rounding_of_blocks_is_unbiased_within_four_sigma() -> None:
    torch.manual_seed(0)
    x = torch.full((20_000, 16), 0.7)
    x[:, 0] = 6.0
    for text in ("e2m1/nv/stochastic", "int8/row/stochastic"):
        got = quantise(x, parse(text, "x"))[:, 1:].double()
        step = (got.max() - got.min()).item()
        assert abs(got.mean().item() - x[0, 1].item()) < 4 * step / 2 / math.sqrt(got.numel())


def test_the_hadamard_transform_is_orthonormal_and_cancels_in_a_product() -> None:
    matrix = hadamard_matrix(torch.device("cpu"), torch.float64)
    assert torch.equal(matrix @ matrix.t(), torch.eye(16, dtype=torch.float64))
    assert (matrix.abs() == 0.25).all()
    x, y = torch.randn(2, 64, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rotate_first(x).view(4, 16, 32), matrix.t().float() @ x.view(4, 16, 32))
    exact = x.t().double() @ y.double()
    bound = 3 * 64 * 2.0**-24 * (x.norm(dim=0)[:, None] * y.norm(dim=0))  # 64 products and two rotations in float32
    assert ((rotate_first(x).t().double() @ rotate_first(y).double() - exact).abs() <= bound).all()


def test_the_hadamard_transform_spreads_an_outlier() -> None:
    x = torch.zeros(16, 1)
    x[5] = 16.0
    assert (rotate_first(x).abs() == 4.0).all()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("e4m9999", "no|bits|got"),
        ("e4m33/tensor", "mantissa"),
        ("e4m3/tensr", "did you mean `tensor`"),
        ("e2m1/mx/flor", "did you mean `floor`"),
        ("e4m3/nv", "made for e2m1"),
        ("int8/mx", "scale of their own"),
        ("int8", "scale of their own"),
        ("e8m0/tensor", "holds no operands"),
        ("bf16/tensor", "exponent bits"),
        ("high/tensor", "stands alone"),
        ("e4m3/tensor/square", "no blocks"),
        ("e4m3/mx/pow2", "leave it away"),
    ],
)
def test_a_bad_operand_is_refused_with_what_is_near(text: str, fault: str) -> None:
    with pytest.raises(PrecisionError, match=fault) as caught:
        parse(text, "precision.gemms.forward.weight")
    assert caught.value.problems[0].where == "precision.gemms.forward.weight"


def test_bad_products_are_refused_together() -> None:
    given = {
        "forwards": {},
        "forward": {"weight": "same", "gradient": "e4m3"},
        "grad_input": {"gradient": "e4m3/tensor/hadamard"},
        "grad_weight": "e4m3",
    }
    with pytest.raises(PrecisionError) as caught:
        gemms_of(given)
    text = str(caught.value)
    for part in ("did you mean `forward`", "forward.gradient", "`same` in the forward", "rotate both", "got `e4m3`"):
        assert part in text


def test_measure_equals_counting_by_hand() -> None:
    x = torch.tensor([0.0, 1e6, -500.0, 2.0**-12, 1.5 * 2.0**-8, 1.0, 1.0625, math.nan, -3.0])
    got = measure(x, "e4m3")
    assert (got.finite, got.nonzero) == (8, 7)
    assert got.overflow == pytest.approx(2 / 7)
    assert got.underflow == pytest.approx(1 / 7)
    assert got.subnormal == pytest.approx(1 / 7)
    assert got.max_ulps == 0.5
    error = np.array([2.0**-12, 0.0, 0.0, 0.0625, 0.0])
    signal = np.array([2.0**-12, 1.5 * 2.0**-8, 1.0, 1.0625, 3.0])
    assert got.sqnr_db == pytest.approx(10 * math.log10((signal**2).sum() / (error**2).sum()))


@pytest.mark.parametrize("name", ["e2m1", "e4m3", "bfloat16", "e5m2", "float16"])
def test_sqnr_grows_by_six_decibels_a_bit(name: str) -> None:
    x = torch.rand(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    got = measure(x, name)
    bits = format_of(name).mantissa_bits
    uniform = 10 * math.log10((x**2).mean().item() * 12 * 4.0**bits)
    assert got.sqnr_db == pytest.approx(uniform, abs=0.1)
    assert got.mean_ulps == pytest.approx(0.25, abs=0.01)
    assert measure(round_to(x, name), name).sqnr_db == math.inf


@pytest.mark.parametrize(("rule", "biased"), [("rceil", False), ("ceil", False), ("floor", True)])
def test_stochastic_rounding_in_mxfp4_is_unbiased_but_with_floor_which_saturates(rule: str, biased: bool) -> None:
    torch.manual_seed(0)
    x = 1.5 * torch.randn(4096, 64)
    got = quantise(x, parse(f"e2m1/mx/{rule}/stochastic", "x"))
    terms = (x.double() * (got - x).double()).flatten()
    gain, sigma = terms.mean().item(), (terms.std() / len(terms) ** 0.5).item()
    assert (gain < -8 * sigma) if biased else (abs(gain) <= 4 * sigma)


@pytest.mark.parametrize("size", [-100, -113, -120, -122])
def test_nvfp4_keeps_tensors_of_tiny_numbers_finite_and_as_exact_as_others(size: int) -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(2))
    x[:, ::7] = 0
    tiny = torch.ldexp(x, torch.tensor(size))
    got = torch.ldexp(nv(tiny), torch.tensor(-size))
    # half a step of E2M1 at its top, 1 of 6; E4M3's rounding of the scale, 1 of 16; float32's subnormal numbers
    allowed = x.abs().view(16, 4, 16).amax(-1, keepdim=True).expand(16, 4, 16).reshape(16, 64) * (1 / 6 + 1 / 16)
    assert ((got - x).abs() <= allowed + 2.0 ** (-148 - size)).all()
    assert (got[:, ::7] == 0).all()


def test_numbers_too_small_for_nvfp4_vanish() -> None:
    assert torch.equal(nv(torch.full((2, 32), 2.0**-140)), torch.zeros(2, 32))
    for size in (-124, -126, -128, -149):
        tiny = torch.ldexp(torch.arange(64.0).view(2, 32), torch.tensor(size))
        assert ((nv(tiny) - tiny).abs() <= tiny.amax() / 4 + 2.0**-127).all()
    mixed = torch.full((2, 32), 2.0**-149)
    mixed[0, 0] = 1
    assert nv(mixed)[0, 0] == 1
    assert nv(mixed)[1:].count_nonzero() == 0
