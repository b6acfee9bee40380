"""Float32 products through oneDNN: only where they gain, only where a probe proves them, given back afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mpt.precision import routing
from mpt.precision.routing import MIN_PRODUCTS, routed, suits
from mpt.precision.switches import observed
from mpt.types import DeviceFacts

KEY = "mkldnn.matmul.fp32_precision"
EPYC = DeviceFacts("cpu", "AMD EPYC", "2.14.1")


def test_only_large_nets_on_amd_cpus_gain() -> None:
    assert suits(EPYC, MIN_PRODUCTS)
    assert not suits(EPYC, MIN_PRODUCTS - 1)
    assert not suits(replace(EPYC, name="Intel(R) Xeon(R)"), MIN_PRODUCTS)
    assert not suits(DeviceFacts("cuda", "AMD Instinct MI300X", "2.14.1", (9, 4)), MIN_PRODUCTS)


def test_nothing_is_switched_where_nothing_is_wanted() -> None:
    before = observed()[KEY]
    with routed(False) as told:
        assert told is None
        assert observed()[KEY] == before


@pytest.mark.parametrize("size", [32, 300])
def test_routed_products_are_float32_and_the_switch_is_given_back(size: int) -> None:
    before = observed()[KEY]
    a = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    exact, magnitude = a.double() @ a.double(), a.double().abs() @ a.double().abs()
    with routed(True) as told:
        error = ((a @ a).double() - exact).abs() / magnitude
    assert told is not None
    assert "float32 products" in told
    assert float(error.max()) <= size * 2.0**-24  # n sums and products, each rounded once to 24 bits
    assert observed()[KEY] == before


def test_products_that_a_probe_finds_narrower_stay_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CPUs with AMX, where the same switch means bfloat16."""
    before = observed()[KEY]
    monkeypatch.setattr(routing, "proof", lambda device: {"format": "bfloat16", "relative_error": 2e-3})
    with routed(True) as told:
        assert told == "float32 products stay with torch's kernels: oneDNN's are bfloat16 on this CPU"
        assert observed()[KEY] == before
