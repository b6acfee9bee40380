"""benchmarks/gpu_check.py itself, at toy size on the CPU: whoever has a GPU gets a script that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.anywhere


def check(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def cells(path: Path) -> dict[str, dict[str, Any]]:
    document = json.loads(path.read_text())
    assert document["schema"] == "mpt.gpu_check/1"
    found: dict[str, dict[str, Any]] = document["cells"]
    return found


def test_every_cell_runs_and_is_in_the_file_and_in_the_table(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    done = check(str(out), "--device", "cpu", "--tiny", "--only-facts", "huge")
    assert done.returncode == 0, done.stdout + done.stderr
    found = cells(out)
    assert [name for name, cell in found.items() if "error" in cell] == []
    assert found["facts"]["passed"] == 1
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        for net in ("resnet50", "gpt2"):
            assert found[f"{net} {precision}"]["samples_per_s"] > 0
            assert f"{net} {precision}" in done.stdout.partition("ms/step  ")[2]
        assert found[f"ceiling {precision}"]["tflops"] > 0
    assert found["overhead mlp"]["ratio"] > 0
    assert found["predicted gpt2 bf16"]["peak_bytes"] > 0
    assert found["predicted resnet50 bf16"]["step_ms"] > 0
    assert found["llama fp8"]["samples_per_s"] > 0
    assert found["images"]["ours_images_per_s"] > 0
    assert found["flops gpt2"]["flops_per_step"] > 0


def test_without_time_every_cell_says_that_it_was_skipped(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    done = check(str(out), "--device", "cpu", "--tiny", "--minutes", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all("s were left" in cell["skipped"] for cell in cells(out).values())


def test_without_a_gpu_it_says_so_and_exits_with_zero(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), str(out), "--device", "cuda"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "no GPU: skipped" in done.stdout
    assert not out.exists()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_check  # type: ignore[import-not-found]

    module: ModuleType = gpu_check
    return module


def test_an_error_in_a_cell_is_recorded_and_the_next_cell_runs(script: ModuleType, tmp_path: Path) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("CUDA error: out of memory")

    run = script.Check(tmp_path / "check.json", time.monotonic() + 60)
    run.run(script.Cell("first", broken, 0))
    assert "out of memory" in cells(tmp_path / "check.json")["first"]["error"]
    run.run(script.Cell("second", lambda: {"step_ms": 1.0}, 0))
    found = cells(tmp_path / "check.json")
    assert found["second"]["step_ms"] == 1.0
    assert "test_gpu_check.py" in found["first"]["traceback"]


def test_a_test_run_that_outlasts_its_time_tells_what_it_had_seen(script: ModuleType) -> None:
    log = "a.py::x PASSED [ 10%]\na.py::y FAILED [ 20%]\na.py::z PASSED [ 30%]\na.py::slow "
    found = sys.modules["_gpu_cells"]._so_far(log, 9.0)
    assert (found["passed"], found["failed"], found["stopped_after_s"]) == (2, 1, 9.0)
    assert found["names"] == ["a.py::y FAILED [ 20%]"]
    assert found["last"] == ["a.py::slow "]


def test_the_table_gives_the_share_of_one_products_speed_and_the_gain_over_float32(script: ModuleType) -> None:
    def cell(ms: float) -> dict[str, Any]:
        return {"step_ms": ms, "samples_per_s": 1e3 * 256 / ms, "peak_bytes": 10**9}

    lines = script.table(
        {
            "ceiling bf16": {"tflops": 800.0},
            "flops resnet50": {"flops_per_step": 4e12},
            "resnet50 bf16": cell(20.0),
            "resnet50 fp32": cell(100.0),
        }
    )
    assert lines[1].split() == ["resnet50", "bf16", "20.00", "12800.0", "200.0", "25%", "5.00", "1.00"]
