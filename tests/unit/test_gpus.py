"""The table of GPUs, over names as drivers tell them, and what MFU comes to."""

from __future__ import annotations

import re

import pytest

from mpt.config.gpus import GPUS, TABLE, gpu_of
from mpt.plan.mfu import Work, mfu, peak_tflops
from mpt.types import DeviceFacts, Unmeasured

# driver's name: float32, tfloat32, float16, bfloat16, fp8, fp4 (dense TFLOP/s), TB/s
DRIVERS = {
    "Tesla V100-SXM2-16GB": (15.7, None, 125, None, None, None, 0.90),
    "Tesla V100-SXM2-32GB": (15.7, None, 125, None, None, None, 0.90),
    "Tesla T4": (8.1, None, 65, None, None, None, 0.32),
    "NVIDIA A10": (31.2, 62.5, 125, 125, None, None, 0.60),
    "NVIDIA L4": (30.3, 60, 121, 121, 242, None, 0.30),
    "NVIDIA GeForce RTX 3090": (35.6, 35.6, 71, 71, None, None, 0.936),
    "GeForce RTX 3090": (35.6, 35.6, 71, 71, None, None, 0.936),
    "NVIDIA GeForce RTX 4090": (82.6, 82.6, 165.2, 165.2, 330.3, None, 1.008),
    "NVIDIA GeForce RTX 5090": (105, 105, 209.5, 209.5, 419, 1676, 1.792),
    "NVIDIA A100-SXM4-80GB": (19.5, 156, 312, 312, None, None, 2.0),
    "NVIDIA A100-SXM4-40GB": (19.5, 156, 312, 312, None, None, 1.6),
    "A100-SXM4-40GB": (19.5, 156, 312, 312, None, None, 1.6),
    "NVIDIA H100 PCIe": (51, 378, 756, 756, 1513, None, 2.0),
    "NVIDIA H100 80GB HBM3": (67, 494.5, 989, 989, 1979, None, 3.35),
    "NVIDIA H100 NVL": (60, 418, 835, 835, 1671, None, 3.9),
    "NVIDIA H200": (67, 494.5, 989, 989, 1979, None, 4.8),
    "NVIDIA H200 NVL": (60, 418, 836, 836, 1671, None, 4.8),
    "NVIDIA B200": (80, 1125, 2250, 2250, 4500, 9000, 8.0),
    "NVIDIA B300 SXM6 AC": (80, None, 2250, 2250, 4500, 14000, 8.0),
    "NVIDIA GB200": (80, 1250, 2500, 2500, 5000, 10000, 8.0),
    "AMD Instinct MI300X": (163.4, 653.7, 1307, 1307, 2614, None, 5.3),
    "AMD Instinct MI355X": (157, None, 2500, 2500, 5000, 10100, 8.0),
}
FORMS = ("float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "nvfp4")
OTHERS = (
    *("NVIDIA A10G", "NVIDIA L40", "NVIDIA L40S", "NVIDIA H20", "NVIDIA H800", "NVIDIA A800-SXM4-80GB", "NVIDIA T400"),
    *("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GB300"),
    *("NVIDIA H200 MIG 1g.18gb", "NVIDIA GH200 480GB", "Tesla V100-PCIE-16GB", "AMD Instinct MI300A", "Tesla P100", ""),
)


@pytest.mark.parametrize("name", DRIVERS)
def test_every_device_of_the_table_is_known_by_its_drivers_name(name: str) -> None:
    gpu = gpu_of(name)
    assert gpu is not None
    assert (*(gpu.peak_tflops(form) for form in FORMS), gpu.bandwidth_tb_s) == DRIVERS[name]


@pytest.mark.parametrize("name", OTHERS)
def test_products_of_a_similar_name_are_not_taken_for_one_of_the_table(name: str) -> None:
    assert gpu_of(name) is None


def test_every_row_knows_its_own_name_and_no_other_rows() -> None:
    assert [gpu_of(gpu.name) for gpu in TABLE] == list(TABLE)
    assert len({gpu.key for gpu in TABLE}) == len(TABLE)
    assert {GPUS[name].key for name in ("h100-sxm", "a100-80gb", "h200-nvl", "mi300x")} == {
        *("h100", "a100", "h200-nvl", "mi300x")
    }


@pytest.mark.parametrize(
    ("label", "form"),
    [
        *(("mxfp8 (float8_e5m2)", "fp8"), ("float8_e4m3fn/float8_e5m2", "fp8"), ("mxfp6 (float6_e3m2fn)", "fp8")),
        *(("mxfp4", "fp4"), ("float4_e2m1fn_x2", "fp4"), ("nvfp4", "fp4")),
    ],
)
def test_labels_of_low_bit_operands_have_the_peak_of_their_bits(label: str, form: str) -> None:
    assert GPUS["b200"].peak_tflops(label) == GPUS["b200"].peak_tflops(form)


def device(name: str, kind: str = "cuda") -> DeviceFacts:
    return DeviceFacts(kind, name, "2.14")


@pytest.mark.parametrize("name", DRIVERS)
def test_mfu_of_one_format_is_the_share_of_its_peak(name: str) -> None:
    for form, peak in zip(FORMS, DRIVERS[name], strict=False):
        work = Work({form: 10**12})
        got = peak_tflops(work, device(name), None)
        if peak is None:
            assert isinstance(got, Unmeasured)
            assert re.search(f"for {form} is known: trainer.peak_tflops=N", got.reason)
        else:
            assert got == pytest.approx(peak)
            assert mfu(work, got, 4 / peak, "") == pytest.approx(0.25)


@pytest.mark.parametrize("name", [n for n in DRIVERS if DRIVERS[n][3]])
def test_mixed_formats_are_blended_by_time(name: str) -> None:
    wide, half = DRIVERS[name][0], DRIVERS[name][3]
    assert wide
    assert half
    work = Work({"float32": 10**12, "bfloat16": 9 * 10**12})
    peak = peak_tflops(work, device(name), None)
    ideal_s = 1 / wide + 9 / half
    assert peak == pytest.approx(10 / ideal_s)
    assert mfu(work, peak, ideal_s, "") == pytest.approx(1)


def test_an_unknown_device_has_no_mfu_but_a_way_out() -> None:
    work = Work({"bfloat16": 10**12})
    for unknown in (device("NVIDIA A10G"), device("AMD EPYC", "cpu"), device("NVIDIA H200", "mps")):
        got = peak_tflops(work, unknown, None)
        assert isinstance(got, Unmeasured)
        assert "trainer.peak_tflops=N" in got.reason
        assert mfu(work, got, 1.0, "") == got
    assert peak_tflops(work, device("NVIDIA A10G"), 70.0) == 70.0


def test_emulated_runs_and_products_that_can_not_be_counted_have_no_mfu() -> None:
    assert mfu(Work({"float16": 1}), 100.0, 1.0, "emulated") == Unmeasured("emulated")
    got = mfu(Work({"float16": 1}, frozenset({"_cudnn_rnn"})), 100.0, 1.0, "")
    assert got == Unmeasured("FLOPs of _cudnn_rnn are not counted")
    assert mfu(Work({"float16": 1}), 100.0, Unmeasured("no steps"), "") == Unmeasured("no steps")
