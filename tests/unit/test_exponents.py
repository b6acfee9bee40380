"""Exponents of tensors from their bits, and what a format loses of a tensor by them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mpt.formats.exponents import exponents, in_memory, largest, sample
from mpt.formats.measure import measure
from mpt.formats.table import FORMATS, format_of
from mpt.stats.exponents import BINS, Exponents, merged, overflow_log2, underflow_log2

SIGNED = [name for name, row in FORMATS.items() if row.signed]
MADE = ["e4m2", "e5m10", "e3m4", "e4m3fn", "e8m3"]


def wild(n: int = 4000, spread: float = 12.0, seed: int = 0) -> Tensor:
    """Numbers of both signs whose logarithms are normal, with zeros among them."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=g) * torch.exp2(spread * torch.randn(n, generator=g))
    x[::17] = 0
    return x.clamp(-3e38, 3e38)


def told(x: Tensor, known_amax: bool = True) -> Exponents:
    counts = exponents(x).numpy().astype(float)
    zeros = float((x == 0).sum())
    nonfinite, counts[-1] = counts[-1], 0
    counts[0] -= zeros
    amax = float(largest(x))
    return Exponents(counts, zeros, nonfinite, x.numel(), amax if known_amax and math.isfinite(amax) else None)


def by_frexp(x: Tensor) -> list[int]:
    """The same counts from numpy's frexp, which is exact."""
    wide = x.detach().double().numpy().ravel()
    fields = np.zeros(wide.shape, dtype=int)
    fine = np.isfinite(wide) & (np.abs(wide) >= 2.0**-126)
    fields[fine] = np.frexp(wide[fine])[1] - 1 + 127
    fields[~np.isfinite(wide)] = 255
    return np.bincount(fields, minlength=BINS).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_exponents_are_frexps(dtype: torch.dtype) -> None:
    x = wild().to(dtype)
    x[:3] = torch.tensor([math.inf, -math.inf, math.nan])
    assert exponents(x).tolist() == by_frexp(x)


def test_exponents_are_right_at_and_beside_every_power_of_two() -> None:
    powers = torch.exp2(torch.arange(-126, 128, dtype=torch.float64)).float()
    around = torch.cat(
        [powers, torch.nextafter(powers, torch.tensor(0.0)), torch.nextafter(powers, torch.tensor(1e39))]
    )
    assert exponents(torch.cat([around, -around])).tolist() == by_frexp(torch.cat([around, -around]))


def test_an_accelerators_way_of_counting_gives_the_same() -> None:
    x = wild()
    fields = (x.view(torch.int32) >> 23) & 255
    assert torch.histc(fields.float(), BINS, min=0, max=BINS).long().tolist() == exponents(x).tolist()


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 4096, 100_000])
def test_a_sample_is_bounded_and_whole_where_it_can_be(n: int) -> None:
    part = sample(torch.arange(float(n)), 64)
    assert part.numel() == n if n <= 64 else 64 // 3 <= part.numel() <= 64


def test_a_sample_meets_every_channel_of_a_channels_last_tensor() -> None:
    x = torch.arange(64.0).view(1, 64, 1, 1).expand(8, 64, 16, 16).contiguous(memory_format=torch.channels_last)
    assert len(sample(x, 1024).unique()) == 64


def test_dense_tensors_are_walked_without_a_copy() -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert in_memory(x).data_ptr() == x.data_ptr()
    assert in_memory(x.transpose(0, 2)).data_ptr() == x.data_ptr()
    assert sorted(in_memory(x[:, ::2]).tolist()) == sorted(x[:, ::2].reshape(-1).tolist())


def test_the_largest_magnitude_is_of_either_sign_and_nan_wins() -> None:
    assert float(largest(torch.tensor([1.0, -3.0, 2.0]).half())) == 3.0
    assert math.isnan(float(largest(torch.tensor([1.0, math.nan]))))
    assert float(largest(torch.empty(0))) == 0.0


@pytest.mark.parametrize(("name", "power"), list(itertools.product([*SIGNED, *MADE], [-9, 0, 5, 16])))
def test_a_formats_losses_are_those_of_rounding_up_to_what_a_bin_hides(name: str, power: int) -> None:
    x = wild()
    row, scale = format_of(name), 2.0**power
    scaled = x.double() * scale  # not to be lost in float32 before it is measured
    want, got = measure(scaled, row), told(x).loss(row, scale)
    assert abs(got.overflow - want.overflow) <= got.uncertain + 1e-12
    assert abs(got.underflow - want.underflow) <= got.uncertain + 1e-12
    shift = (overflow_log2(row) - power) % 1
    assert shift, "the limit of overflow lies inside of a bin"
    assert got.underflow == pytest.approx(want.underflow, abs=1e-12), "the limit of underflow is a power of two"
    assert got.subnormal == pytest.approx(want.subnormal, abs=got.uncertain + 1e-12)


@pytest.mark.parametrize("scale", [0.7, 3.0, 1000.0])
def test_scales_between_powers_of_two_are_within_what_a_bin_hides(scale: float) -> None:
    x = wild()
    want, got = measure(x.double() * scale, "float16"), told(x).loss("float16", scale)
    assert abs(got.overflow - want.overflow) <= got.uncertain
    assert abs(got.underflow - want.underflow) <= got.uncertain
    assert got.uncertain < 0.1


def test_nothing_overflows_below_the_limit_that_the_largest_magnitude_keeps() -> None:
    below = torch.tensor([40000.0, 65519.0])
    assert told(below).loss("float16").overflow == 0
    assert told(below, known_amax=False).loss("float16").overflow > 0
    assert told(torch.tensor([65536.0])).loss("float16").overflow == 1


def test_limits_are_where_rounding_goes_over_and_under() -> None:
    assert overflow_log2(format_of("float16")) == math.log2(65520)
    assert overflow_log2(format_of("e4m3")) == math.log2(464)
    assert overflow_log2(format_of("e2m1")) == math.log2(7)
    assert underflow_log2(format_of("float16")) == -25


def test_headroom_is_counted_from_the_largest_magnitude() -> None:
    x = told(torch.tensor([1.0, -2.0]))
    assert x.headroom_bits("float16") == pytest.approx(math.log2(65520) - 1)
    assert x.headroom_bits("float16", 2.0**16) == pytest.approx(math.log2(65520) - 17)
    assert told(torch.zeros(3)).headroom_bits("float16") is None


def test_tensors_together_weigh_by_their_size_however_few_elements_were_counted() -> None:
    big, small = told(torch.full((1000,), 4.0)), told(torch.full((10,), 0.25))
    sampled = Exponents(big.counts / 10, 0, 0, 1000, 4.0)
    both = merged([sampled, small])
    assert both.counts[[129, 125]].tolist() == [1000, 10]
    assert (both.size, both.amax) == (1010, 4.0)
    assert merged([]).some == 0


def test_zeros_and_non_finite_numbers_are_no_loss_of_a_format() -> None:
    x = told(torch.tensor([0.0, 0.0, math.nan, math.inf, 1.0]))
    assert (x.some, x.zeros, x.nonfinite) == (1, 2, 2)
    assert x.loss("float16").lost == 0
    assert told(torch.zeros(4)).loss("e4m3").lost == 0
