"""Whole runs on the GPU: they learn, their audits match, they resume bit for bit, their memory is the allocator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mpt.checkpoint import load
from tests.e2e._run import Done
from tests.gpu._gpu_kit import CNN, DEVICE, GPT, NETS, POLICIES

ON = f"device={DEVICE}"
WANTED = {
    **dict.fromkeys(("fp32", "tf32", "bf16", "fp16", "fp16_master"), 0.98),
    **dict.fromkeys(("bf16_true", "fp16_true"), 0.95),
}


@pytest.mark.parametrize("precision", WANTED)
def test_digits_are_learned(precision: str, tmp_path: Path) -> None:
    run = Done(tmp_path / "r", f"precision={precision}", ON)
    assert run.summary["final"]["accuracy"] >= WANTED[precision]
    assert run.summary["precision"]["audit"] == "match"


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("precision", POLICIES)
def test_every_module_computes_as_planned(precision: str, net: str, tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *NETS[net], f"precision={precision}", "trainer.max_steps=2", ON)
    wrong = [row for row in run.audit["rows"] if not row["matches"]]
    assert wrong == []
    assert run.audit["verdict"] == "match"
    assert run.audit["loss_format"] == "float32"


TIMES = ("time_s", "data_wait_s")
HARD = (
    *(
        "trainer.max_steps=24",
        "trainer.eval_every=12",
        "checkpoint.every=8",
        "checkpoint.keep=9",
        "trainer.log_every=5",
    ),
    *("trainer.ema_decay=0.9", "trainer.clip_norm=1", "trainer.accumulate=2", "trainer.deterministic=true"),
)


def untimed(run: Done) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in run.steps]


def assert_same(a: Any, b: Any, where: str) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{i}]")


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp16_master"])
def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(precision: str, net: str, tmp_path: Path) -> None:
    words = (*NETS[net], f"precision={precision}", "model.dropout=0.1", *HARD, ON)
    whole = Done(tmp_path / "whole", *words)
    first = min((whole.folder / "checkpoints").glob("update-*"))
    resumed = Done(tmp_path / "resumed", *words, f"resume={first}")
    assert untimed(resumed) == untimed(whole)
    assert resumed.evals == whole.evals
    a, b = load(resumed.folder), load(whole.folder)
    for part in ("model", "policy", "optimizer", "scaler", "ema", "rng"):
        assert_same(a[part], b[part], part)


@pytest.mark.cuda_only
@pytest.mark.parametrize("net", NETS)
def test_the_peak_is_the_allocators_and_holds_its_parts(net: str, tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *NETS[net], "precision=fp32", "trainer.max_steps=5", "data.eval_batch_size=8", ON)
    memory = run.summary["memory"]
    assert "allocator" in memory["method"]
    assert memory["peak_bytes"] == torch.cuda.max_memory_allocated()
    params = run.plan["params"]
    assert memory["params_bytes"] == 4 * params
    assert memory["grads_bytes"] == 4 * params
    assert 8 * params <= memory["optimizer_bytes"] <= 8 * params + 64
    lasting = memory["params_bytes"] + memory["optimizer_bytes"] + memory["data_bytes"] + memory["buffers_bytes"]
    assert memory["peak_bytes"] >= lasting + max(memory["grads_bytes"], memory["activations_bytes"])
    assert memory["activations_bytes"] > 0


def test_half_activations_take_less_memory_than_float32_ones(tmp_path: Path) -> None:
    words = (*GPT, "trainer.max_steps=1", "data.batch_size=32", ON)
    # the first run of a process also makes cuBLAS take its workspace
    runs = {p: Done(tmp_path / p, f"precision={p}", *words) for p in ("fp16", "fp32", "bf16")}
    held = {p: run.summary["memory"]["activations_bytes"] for p, run in runs.items()}
    # layer norms keep float32 inputs; all else that is saved has half the bytes
    assert 0.5 * held["fp32"] < held["bf16"] < 0.85 * held["fp32"]


@pytest.mark.cuda_only
def test_speed_is_measured_by_device_events(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *CNN, "trainer.max_steps=30", ON)
    assert run.summary["speed"]["step_p50_ms"] > 0
    assert run.summary["device"]["type"] == "cuda"
    assert all(row["time_s"] > 0 for row in run.steps)
