"""Which formats a device has: the decision table, over facts of devices that are not here."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from mpt.errors import PrecisionError
from mpt.precision.capability import resolve, support
from mpt.types import DeviceFacts
from tests.unit._precision_kit import policy_config

N, E = "native", "emulated"


def cuda(major: int, minor: int) -> DeviceFacts:
    return DeviceFacts("cuda", f"GPU {major}.{minor}", "2.14.1", capability=(major, minor))


def cpu(*features: str) -> DeviceFacts:
    return DeviceFacts("cpu", "CPU", "2.14.1", features=features)


MPS = DeviceFacts("mps", "Apple M3", "2.14.1")

TABLE: list[tuple[DeviceFacts, dict[str, str]]] = [
    (cuda(5, 2), {"float32": N, "tfloat32": E, "bfloat16": E, "float16": E}),
    (cuda(7, 0), {"float32": N, "tfloat32": E, "bfloat16": E, "float16": N}),
    (cuda(7, 5), {"float32": N, "tfloat32": E, "bfloat16": E, "float16": N}),
    (cuda(8, 0), {"float32": N, "tfloat32": N, "bfloat16": N, "float16": N}),
    (cuda(8, 6), {"float32": N, "tfloat32": N, "bfloat16": N, "float16": N}),
    (cuda(8, 9), {"float32": N, "tfloat32": N, "bfloat16": N, "float16": N}),
    (cuda(9, 0), {"float32": N, "tfloat32": N, "bfloat16": N, "float16": N}),
    (cuda(10, 0), {"float32": N, "tfloat32": N, "bfloat16": N, "float16": N}),
    (cuda(11, 0), {"float32": N, "tfloat32": N, "bfloat16": N, "float16": N}),
    (cuda(12, 0), {"float32": N, "tfloat32": N, "bfloat16": N, "float16": N}),
    (cpu(), {"float32": N, "tfloat32": E, "bfloat16": N, "float16": E}),
    (cpu("avx512_bf16"), {"float32": N, "tfloat32": E, "bfloat16": N, "float16": E}),
    (MPS, {"float32": N, "tfloat32": E, "bfloat16": N, "float16": N}),
]


@pytest.mark.parametrize(("facts", "want"), TABLE, ids=lambda v: v.name if isinstance(v, DeviceFacts) else "")
def test_each_device_has_the_formats_of_the_table(facts: DeviceFacts, want: dict[str, str]) -> None:
    assert want.items() <= {s.format: s.how for s in support(facts)}.items()


@pytest.mark.parametrize(("facts", "want"), TABLE, ids=lambda v: v.name if isinstance(v, DeviceFacts) else "")
def test_a_policy_becomes_what_the_table_says(facts: DeviceFacts, want: dict[str, str]) -> None:
    for name in ("fp32", "tf32", "bf16", "fp16"):
        mechanism = resolve(policy_config(name), facts)
        assert mechanism.how == want[mechanism.compute]
        assert mechanism.device == facts.type


def test_a_t4_emulates_bfloat16_though_torch_would_call_it_supported() -> None:
    mechanism = resolve(policy_config("bf16"), cuda(7, 5))
    assert (mechanism.how, mechanism.reason) == (E, "compute capability 7.5, needs 8.0 or newer")


def test_a_cpu_without_bfloat16_instructions_says_that_it_will_be_slow() -> None:
    assert "expect it slower" in resolve(policy_config("bf16"), cpu()).reason
    assert resolve(policy_config("bf16"), cpu("avx512_bf16")).reason == "the CPU has avx512_bf16"


@pytest.mark.parametrize(
    ("name", "facts", "missing"),
    [
        ("fp16", cpu(), "avx512_fp16"),
        ("bf16", cuda(7, 0), "needs 8.0"),
        ("tf32", cuda(7, 5), "needs 8.0"),
        ("tf32", cpu(), "NVIDIA"),
        ("tf32", MPS, "NVIDIA"),
    ],
)
def test_native_where_it_is_not_says_what_is_missing_and_what_works(
    name: str, facts: DeviceFacts, missing: str
) -> None:
    with pytest.raises(PrecisionError) as told:
        resolve(policy_config(name, backend="native"), facts)
    assert told.value.exit_code == 2
    (problem,) = told.value.problems
    assert problem.where == "precision.backend"
    assert missing in problem.what
    assert "precision.backend=auto" in problem.hint
    assert "native here: float32" in problem.hint


def test_native_float16_is_had_on_a_cpu_with_the_instructions_when_asked_for() -> None:
    assert resolve(policy_config("fp16", backend="native"), cpu("avx512_fp16")).how == N
    assert resolve(policy_config("fp16"), cpu("avx512_fp16")).how == E


def test_emulation_can_be_asked_for_where_the_format_is_native() -> None:
    assert resolve(policy_config("bf16", backend="emulated"), cuda(9, 0)).how == E
    assert resolve(policy_config("fp32", backend="emulated"), cuda(9, 0)).how == N


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"compute": "float17"}, "precision.compute"),
        ({"compute": "bfloat16", "param": "float16"}, "precision.param"),
        ({"compute": "tfloat32", "param": "tfloat32"}, "precision.param"),
        ({"compute": "float16", "param": "float16", "master": "bfloat16"}, "precision.master"),
    ],
)
def test_roles_that_do_not_fit_together_are_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(PrecisionError) as told:
        resolve(policy_config("fp32", **changes), cpu())
    assert where in [p.where for p in told.value.problems]


def test_the_table_and_the_op_lists_need_no_torch() -> None:
    code = "import sys, mpt.precision.capability, mpt.precision.ops, mpt.precision; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
