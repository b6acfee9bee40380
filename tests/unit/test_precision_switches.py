"""TF32, reduced-precision sums and determinism: set together, given back, and proved by a product."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpt.formats import format_of
from mpt.precision import flags, observed
from mpt.precision.emulate import Emulation
from mpt.precision.probe import probe
from mpt.precision.switches import tfloat32_allowed, tfloat32_switched
from mpt.types import DeviceFacts
from tests.unit._precision_kit import CPU, policy_config

AMPERE = DeviceFacts("cuda", "A100", "2.14.1", capability=(8, 0))
VOLTA = DeviceFacts("cuda", "V100", "2.14.1", capability=(7, 0))
TF32 = ("cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision")


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "fp16_master"])
def test_tfloat32_is_off_for_matmul_convolution_and_recurrence_unless_asked_for(name: str) -> None:
    with flags(policy_config(name), AMPERE):
        now = observed()
        assert [now[key] for key in TF32] == ["ieee"] * 3
        assert now["float32_matmul_precision"] == "highest"
        assert now["cudnn.allow_tf32"] is False
        assert torch.backends.cuda.matmul.allow_tf32 is False


def test_tfloat32_is_on_for_all_three_on_a_device_that_has_it() -> None:
    with flags(policy_config("tf32"), AMPERE):
        now = observed()
        assert [now[key] for key in TF32] == ["tf32"] * 3
        assert now["cudnn.allow_tf32"] is True
        assert torch.backends.cuda.matmul.allow_tf32 is True
        assert tfloat32_allowed(convolution=True)
        assert tfloat32_allowed(convolution=False)


@pytest.mark.parametrize("facts", [VOLTA, CPU])
def test_where_it_is_emulated_the_hardware_flags_stay_off(facts: DeviceFacts) -> None:
    with flags(policy_config("tf32"), facts):
        assert [observed()[key] for key in TF32] == ["ieee"] * 3


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_sums_are_not_reduced_in_half(name: str) -> None:
    with flags(policy_config(name), AMPERE):
        now = observed()
        assert now["cuda.matmul.allow_fp16_reduced_precision_reduction"] is False
        assert now["cuda.matmul.allow_bf16_reduced_precision_reduction"] is False
        assert now["cuda.matmul.allow_fp16_accumulation"] is False


@pytest.mark.parametrize(
    ("facts", "deterministic", "benchmark"), [(AMPERE, False, True), (AMPERE, True, False), (CPU, False, False)]
)
def test_deterministic_turns_the_benchmark_off(facts: DeviceFacts, deterministic: bool, benchmark: bool) -> None:
    with flags(policy_config("bf16"), facts, deterministic=deterministic):
        assert torch.backends.cudnn.benchmark is benchmark
        assert torch.backends.cudnn.deterministic is deterministic
        assert torch.are_deterministic_algorithms_enabled() is deterministic


def test_deterministic_gives_cublas_the_workspace_it_needs_unless_the_user_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with flags(policy_config("bf16"), AMPERE, deterministic=True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with flags(policy_config("bf16"), AMPERE, deterministic=True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def start_states() -> list[dict[str, Any]]:
    return [
        {},
        {"matmul": "high"},
        {"benchmark": True, "new": "tf32"},
    ]


@pytest.mark.parametrize("state", start_states())
@pytest.mark.parametrize("name", ["fp32", "tf32", "fp16"])
def test_every_switch_has_its_old_value_afterwards_also_after_an_error(name: str, state: dict[str, Any]) -> None:
    untouched = observed()
    if "matmul" in state:
        torch.set_float32_matmul_precision(state["matmul"])
    if "new" in state:
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    before = observed()
    with pytest.raises(ZeroDivisionError), flags(policy_config(name), AMPERE, deterministic=True):
        raise ZeroDivisionError
    after = observed()
    assert {key: after[key] for key, value in before.items() if value is not None} == {
        key: value for key, value in before.items() if value is not None
    }
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = untouched["cuda.matmul.fp32_precision"]
    torch.backends.cudnn.benchmark = False
    assert observed()["cudnn.conv.fp32_precision"] == untouched["cudnn.conv.fp32_precision"]


def test_a_switch_inside_is_given_back_to_the_outer_one() -> None:
    with flags(policy_config("tf32"), AMPERE):
        with tfloat32_switched(False):
            assert not tfloat32_allowed(convolution=True)
        assert tfloat32_allowed(convolution=True)


def test_the_probe_proves_float32_on_this_cpu() -> None:
    with flags(policy_config("fp32"), CPU):
        found = probe("cpu")
    for op in ("matmul", "conv"):
        assert found[op]["format"] == "float32"
        assert found[op]["relative_error"] <= found[op]["bound"]


class Narrow(TorchDispatchMode):
    """Pretends to be hardware that multiplies float32 in bfloat16."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default and args[0].dtype == torch.float32:
            return func(*(a.bfloat16() for a in args)).float()
        return func(*args, **(kwargs or {}))


def test_the_probe_sees_tfloat32_and_anything_narrower() -> None:
    with Emulation("tfloat32"):
        found = probe("cpu")
    assert found["matmul"]["format"] == found["conv"]["format"] == "tfloat32"
    error = found["matmul"]["relative_error"]
    unit = format_of("tfloat32").unit_roundoff
    assert unit / 2 <= error <= unit
    with Narrow():
        found = probe("cpu")
    assert found["matmul"]["format"] == "bfloat16"
    assert found["conv"]["format"] == "float32"
