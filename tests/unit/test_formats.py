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
E4M3 = format_of("e4m3")
NUMPY = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float6_e3m2fn": ml_dtypes.float6_e3m2fn,
    "float6_e2m3fn": ml_dtypes.float6_e2m3fn,
    "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3_ieee": ml_dtypes.float8_e4m3,
}
ROWS = {
    **FORMATS,
    "e3m4": format_of("e3m4"),
    "e4m3_ieee": NumberFormat("e4m3", 4, 3, "ieee", "float32", "e4m3", "ml_dtypes"),
    "e4m2": format_of("e4m2"),
}
SIGNED = [name for name, row in ROWS.items() if row.signed]
NARROW = [name for name in NUMPY if ROWS[name].bits <= 8]
WITHOUT_NAN = [name for name, row in ROWS.items() if row.specials == "none"]


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


def numbers(x: torch.Tensor, name: str) -> torch.Tensor:
    """x without NaN where the format has none: ml_dtypes then gives a number that nobody defined."""
    return x[~x.isnan()] if name in WITHOUT_NAN else x


def all_codes(name: str) -> np.ndarray:
    count = 2 ** ROWS[name].bits
    return np.arange(count, dtype=np.uint8).view(NUMPY[name]).astype(np.float32)


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
    [
        ("e4m3", 448.0, 2.0**-9),
        ("e5m2", 57344.0, 2.0**-16),
        ("e3m2", 28.0, 2.0**-4),
        ("e2m3", 7.5, 2.0**-3),
        ("e2m1", 6.0, 0.5),
    ],
)
def test_limits_of_narrow_formats_are_the_published_ones(row: str, largest: float, smallest: float) -> None:
    assert (format_of(row).max, format_of(row).min_subnormal) == (largest, smallest)


@pytest.mark.parametrize("name", list(NUMPY))
def test_rounding_equals_ml_dtypes_on_two_million_random_codes(name: str) -> None:
    x = numbers(random_floats(), name)
    assert same_bits(round_to(x, ROWS[name]), by_ml_dtypes(x, name))


@pytest.mark.parametrize("name", NARROW)
def test_rounding_equals_ml_dtypes_on_two_million_values_near_its_range(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    spread = torch.randint(ROWS[name].min_exponent - 9, ROWS[name].max_exponent + 3, (N_RANDOM,), generator=generator)
    x = torch.ldexp(torch.randn(N_RANDOM, generator=generator), spread)
    assert same_bits(round_to(x, ROWS[name]), by_ml_dtypes(x, name))


@pytest.mark.parametrize("name", NARROW)
def test_all_codes_and_all_halfway_points_round_as_in_ml_dtypes(name: str) -> None:
    codes = torch.from_numpy(all_codes(name))
    finite = codes[codes.isfinite()].double().unique()
    halfway = ((finite[1:] + finite[:-1]) / 2).float()
    x = torch.cat(
        [codes, halfway, halfway.nextafter(torch.tensor(-math.inf)), halfway.nextafter(torch.tensor(math.inf))]
    )
    x = numbers(x, name)
    assert len(finite) >= 2 ** ROWS[name].bits - 2 ** (ROWS[name].mantissa_bits + 1) - 1
    assert same_bits(round_to(x, ROWS[name]), by_ml_dtypes(x, name))
    valued = numbers(codes, name)
    assert same_bits(round_to(valued, ROWS[name]), valued)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("e4m3", 0.3, 0.3125),
        ("e4m3", 448.0 + 15.9, 448.0),
        ("e4m3", 2.0**-10, 0.0),
        ("e4m3", 3 * 2.0**-10, 2 * 2.0**-9),
        ("e5m2", 61439.0, 57344.0),
        ("e5m2", 61440.0, math.inf),
        ("e5m2", 1.125, 1.0),
        ("e3m2", 100.0, 28.0),
        ("e2m3", 7.3, 7.5),
        ("e2m3", 7.25, 7.0),
        ("e2m1", 2.5, 2.0),
        ("e2m1", 5.0, 4.0),
        ("e2m1", 0.25, 0.0),
        ("e2m1", 0.75, 1.0),
        ("e2m1", -3.6, -4.0),
        ("e8m0", 1.5, 2.0),
        ("e8m0", 2.9, 2.0),
        ("e4m2", 0.3, 0.3125),
    ],
)
def test_golden_values(name: str, value: float, wanted: float) -> None:
    assert round_to(torch.tensor([value]), name).item() == wanted


@pytest.mark.parametrize("name", ["e4m3", "e2m1", "e5m2", "float16", "bfloat16"])
def test_rounding_toward_zero_drops_what_exceeds(name: str) -> None:
    row = format_of(name)
    x = random_floats(4)[:200_000]
    x = x[x.isfinite() & (x.abs() <= row.max)]
    got = round_to(x, row, rounding="zero")
    nearest = round_to(x, row)
    assert (got.abs() <= x.abs()).all()
    assert same_bits(round_to(got, row), got)
    closer = (nearest.abs() <= x.abs()).logical_and(nearest != got)
    assert not closer.any()
    assert round_to(torch.tensor([1e39]), row, rounding="zero").isinf().item() == (row.specials == "ieee")


@pytest.mark.parametrize("name", ["e2m1", "e4m3", "e5m2", "bfloat16"])
def test_stochastic_rounding_is_unbiased_within_four_sigma(name: str) -> None:
    row = format_of(name)
    torch.manual_seed(0)
    n = 40_000
    for value in (1.1, -1.3, 0.3 * row.min_subnormal, row.max * 0.9, 2.7 * row.min_normal):
        x = torch.full((n,), value)
        got = round_to(x, row, rounding="stochastic").double()
        low, high = got.min().item(), got.max().item()
        assert low <= x[0].item() <= high
        share = (x[0].double().item() - low) / (high - low)
        sigma = (high - low) * math.sqrt(share * (1 - share) / n)
        assert abs(got.mean().item() - x[0].item()) < 4 * sigma
        assert len(got.unique()) == 2
        assert same_bits(round_to(got.float(), row), got.float())


@pytest.mark.parametrize("name", NARROW)
def test_stochastic_rounding_leaves_representable_numbers(name: str) -> None:
    codes = numbers(torch.from_numpy(all_codes(name)), name)
    assert same_bits(round_to(codes, ROWS[name], rounding="stochastic"), codes)


def test_e8m0_has_powers_of_two_and_nothing_else() -> None:
    row = format_of("e8m0")
    assert (row.max, row.min_normal, row.bits) == (2.0**127, 2.0**-127, 8)
    x = torch.tensor([0.0, -1.0, math.inf, math.nan, 2.0**-149, 3e38])
    got = round_to(x, row)
    assert got[[0, 1, 2, 3, 5]].isnan().all()
    assert got[4] == 2.0**-127
    assert round_to(torch.tensor([3e38, math.inf]), row, overflow="saturate").tolist() == [2.0**127] * 2


@pytest.mark.parametrize(("name", "fault"), [("e1m2", "2 to 8 exponent"), ("e9m2", "2 to 8"), ("e4m0", "1 to 23")])
def test_a_made_format_has_bits_that_float32_can_hold(name: str, fault: str) -> None:
    with pytest.raises(PrecisionError, match=fault):
        format_of(name)


def test_a_made_format_takes_specials_of_its_name() -> None:
    assert format_of("e4m2").max == 1.75 * 2.0**7
    assert format_of("e4m2fn").max == 1.75 * 2.0**8
    assert format_of("e5m3fn").specials == "nan"
    assert format_of("e4m3") is format_of("float8_e4m3fn")


@pytest.mark.parametrize("name", SIGNED)
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
    if row.specials == "nan":
        want = torch.where(want.isinf(), torch.nan, want)
    elif row.specials == "none":
        want = want.clamp(-row.max, row.max)
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
    for name in SIGNED:
        out = round_to(x, ROWS[name])
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
