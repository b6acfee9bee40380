"""Number formats: limits against published ones, rounding against ml_dtypes and exact arithmetic, bit by bit."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from mpt.errors import PrecisionError
from mpt.formats import FORMATS, NumberFormat, format_of
from mpt.formats.rounding import round_tfloat32, round_to

N_RANDOM = 2_000_000
E4M3 = NumberFormat("float8_e4m3fn", 4, 3, "nan", "float8_e4m3fn", "e4m3", "OCP OFP8 1.0")
E5M2 = NumberFormat("float8_e5m2", 5, 2, "ieee", "float8_e5m2", "e5m2", "OCP OFP8 1.0")
E2M1 = NumberFormat("float4_e2m1fn", 2, 1, "none", "float32", "e2m1", "OCP MX 1.0")
E3M2 = NumberFormat("float6_e3m2fn", 3, 2, "none", "float32", "e3m2", "OCP MX 1.0")
NUMPY = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
ROWS = {**FORMATS, **{row.name: row for row in (E4M3, E5M2)}}


def random_floats(seed: int = 0) -> torch.Tensor:
    """Every kind of float32: random codes, so all exponents, both signs, subnormals, infinities and NaN."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-(2**31), 2**31, (N_RANDOM,), generator=generator)
    return codes.to(torch.int32).view(torch.float32)


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal codes, any NaN equal to any other."""
    equal = got.view(torch.int32) == want.view(torch.int32)
    return bool((equal | (got.isnan() & want.isnan())).all())


def by_ml_dtypes(x: torch.Tensor, name: str) -> torch.Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(x.numpy().astype(NUMPY[name]).astype(np.float32))


def exactly(value: float, row: NumberFormat) -> float:
    """Round one finite number by exact rational arithmetic, the definition itself."""
    x = Fraction(abs(value))
    if x == 0:
        return value
    exponent = max(math.frexp(float(x))[1] - 1, row.min_exponent)
    unit = Fraction(2) ** (exponent - row.mantissa_bits)
    rounded = round(x / unit) * unit  # Python rounds a fraction's ties to even
    return math.copysign(float("inf") if rounded > Fraction(row.max) else float(rounded), value)


@pytest.mark.parametrize(
    ("name", "largest", "smallest"),
    [
        ("float32", 3.4028234663852886e38, 2.0**-149),
        ("float16", 65504.0, 2.0**-24),
        ("bfloat16", 3.3895313892515355e38, 2.0**-133),
        ("tfloat32", 3.4011621342146535e38, 2.0**-136),
    ],
)
def test_limits_are_the_published_ones(name: str, largest: float, smallest: float) -> None:
    assert format_of(name).max == largest
    assert format_of(name).min_subnormal == smallest


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_limits_are_those_of_torch(name: str) -> None:
    info = torch.finfo(getattr(torch, name))
    row = format_of(name)
    assert (row.max, row.min_normal, row.bits) == (info.max, info.smallest_normal, info.bits)
    assert row.unit_roundoff == info.eps / 2


@pytest.mark.parametrize(
    ("row", "largest", "smallest"),
    [(E4M3, 448.0, 2.0**-9), (E5M2, 57344.0, 2.0**-16), (E2M1, 6.0, 0.5), (E3M2, 28.0, 2.0**-4)],
)
def test_a_narrower_format_needs_only_its_row(row: NumberFormat, largest: float, smallest: float) -> None:
    assert (row.max, row.min_subnormal) == (largest, smallest)


@pytest.mark.parametrize("name", list(NUMPY))
def test_rounding_equals_ml_dtypes_on_two_million_random_codes(name: str) -> None:
    x = random_floats()
    assert same_bits(round_to(x, ROWS[name]), by_ml_dtypes(x, name))


@pytest.mark.parametrize("name", list(ROWS))
def test_rounding_equals_exact_arithmetic_at_and_beside_every_kind_of_tie(name: str) -> None:
    row = ROWS[name]
    values = []
    for exponent in (row.min_exponent, row.min_exponent + 1, -1, 0, 1, row.max_exponent - 1, row.max_exponent):
        unit = 2.0 ** (exponent - row.mantissa_bits)
        for steps in (
            0.5,
            1.5,
            2.5,
            2**row.mantissa_bits + 0.5,
            2**row.mantissa_bits + 1.5,
            2 ** (row.mantissa_bits + 1) - 0.5,
        ):
            tie = steps * unit
            values += [tie, math.nextafter(tie, 0), math.nextafter(tie, math.inf), -tie]
    x = torch.tensor(values, dtype=torch.float64)
    got = round_to(x, row)
    want = torch.tensor([exactly(v, row) for v in values], dtype=torch.float64)
    want = torch.where(want.isinf() & torch.tensor(row.specials != "ieee"), torch.nan, want)
    assert torch.equal(got.nan_to_num(nan=-1.0), want.nan_to_num(nan=-1.0))


def test_tfloat32_equals_float64_arithmetic_on_two_million_random_codes() -> None:
    x = random_floats(1)
    finite = x[x.isfinite()]
    wide = finite.double().numpy()
    unit = np.exp2(np.maximum(np.frexp(wide)[1] - 1, -126) - 10.0)
    want = torch.from_numpy(np.rint(wide / unit) * unit)
    want[want.abs() > format_of("tfloat32").max] *= math.inf
    assert torch.equal(round_tfloat32(finite).double(), want)


def test_tfloat32_keeps_infinities_nans_and_the_sign_of_zero() -> None:
    odd_nans = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, -0x7FFFFF], dtype=torch.int32).view(torch.float32)
    assert round_tfloat32(odd_nans).isnan().all()
    x = torch.tensor([math.inf, -math.inf, 0.0, -0.0])
    assert same_bits(round_tfloat32(x), x)


def test_the_largest_float32_overflows_to_infinity_in_tfloat32() -> None:
    largest = torch.tensor([torch.finfo(torch.float32).max])
    assert round_tfloat32(largest).item() == math.inf
    assert round_to(largest, "tfloat32", overflow="saturate").item() == format_of("tfloat32").max


@pytest.mark.parametrize(("name", "numpy_type"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_every_code_of_a_half_format_is_its_own_rounding(name: str, numpy_type: type) -> None:
    codes = np.arange(2**16, dtype=np.uint16).view(numpy_type).astype(np.float32)
    x = torch.from_numpy(codes)
    assert same_bits(round_to(x, name), x)


def test_a_float64_is_rounded_once_not_by_way_of_float32() -> None:
    just_over_a_tie = 1 + 2.0**-11 + 2.0**-40
    x = torch.tensor([just_over_a_tie], dtype=torch.float64)
    assert round_to(x, "float16").item() == 1 + 2.0**-10
    assert x.to(torch.float32).to(torch.float16).item() == 1.0


def test_saturation_turns_infinities_too_into_the_largest_number() -> None:
    x = torch.tensor([math.inf, -1e6, 464.0, 465.0, -math.inf, math.nan])
    got = round_to(x, E4M3, overflow="saturate")
    assert got[:5].tolist() == [448.0, -448.0, 448.0, 448.0, -448.0]
    assert got[5].isnan()


def test_rounding_keeps_shape_dtype_and_memory_format() -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for name in FORMATS:
        out = round_to(x, name)
        assert out.shape == x.shape
        assert out.dtype == x.dtype
        assert out.is_contiguous(memory_format=torch.channels_last)
    strided = torch.randn(8, 8)[::2, ::3]
    assert torch.equal(round_tfloat32(strided), round_tfloat32(strided.contiguous()))


def test_rounding_integers_is_refused() -> None:
    with pytest.raises(PrecisionError, match="int64"):
        round_to(torch.arange(3), "float16")


def test_an_unknown_format_names_its_neighbours() -> None:
    with pytest.raises(PrecisionError, match="did you mean `float16`"):
        format_of("float17")
