"""A whole run in every precision: it learns, and its record says what happened."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from mpt.checkpoint import load
from mpt.cli import main
from mpt.train.eval_run import evaluate
from tests.e2e._run import TINY, Done

WANTED = {
    "fp32": 0.98,
    "tf32": 0.98,
    "bf16": 0.98,
    "fp16": 0.98,
    "fp16_master": 0.98,
    "bf16_true": 0.95,
    "fp16_true": 0.95,
    "fp8": 0.97,
    "fp8_delayed": 0.97,
    "mxfp8": 0.97,
    "mxfp4": 0.95,
    "nvfp4": 0.96,
    "int8": 0.97,
}


@pytest.mark.parametrize("precision", WANTED)
def test_digits_are_learned_and_the_audit_matches(precision: str, tmp_path: Path) -> None:
    run = Done(tmp_path / "r", f"precision={precision}", "device=cpu")
    summary = run.summary
    assert summary["final"]["accuracy"] >= WANTED[precision]
    assert summary["precision"]["audit"] == "match"
    assert summary["precision"]["requested"] == precision
    assert run.audit["loss_format"] == "float32"
    assert (run.folder / "DONE").read_text().strip() == summary["reason"]
    lost = summary["losses_of_precision"]["lost_update_share"]
    assert (lost is not None and 0 < lost < 1) if precision.endswith("_true") else lost is None


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_small_gpt_beats_the_bigram_baseline(precision: str, tmp_path: Path) -> None:
    words = ("model=gpt", "data=shakespeare", "trainer.max_steps=300", "device=cpu")
    run = Done(tmp_path / "r", f"precision={precision}", *words)
    assert run.summary["final"]["eval_loss"] < 2.54  # nats; the bigram model of the same text
    assert run.summary["precision"]["audit"] == "match"


def test_every_precision_starts_from_the_same_weights_and_sees_the_same_batches(tmp_path: Path) -> None:
    first = {}
    for precision in ("fp32", "bf16", "fp16", "fp16_master"):
        run = Done(tmp_path / precision, f"precision={precision}", *TINY, "trainer.max_steps=1", "model.dropout=0")
        first[precision] = run.steps[0]["loss"]
    # one forward pass from the same weights: what differs is rounding to 8 or 11 bits, of logits near 1
    for precision, bits in (("bf16", 8), ("fp16", 11), ("fp16_master", 11)):
        assert math.isclose(first[precision], first["fp32"], abs_tol=8 * 2.0**-bits)
        assert first[precision] != first["fp32"]


@pytest.mark.parametrize(
    "words",
    [
        ("precision=bf16",),
        ("precision=fp16_master", "trainer.ema_decay=0.9"),
        ("precision=fp8_delayed", "model.width=32", "optimizer.lr=0.02"),
    ],
    ids="-".join,
)
def test_evaluating_the_checkpoint_repeats_the_runs_own_last_evaluation(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Done(tmp_path / "r", *TINY, *words, "trainer.max_epochs=2")
    capsys.readouterr()
    assert evaluate(str(run.folder), [], None) == 0
    last = run.evals[-1]
    assert f"accuracy {last['accuracy']:.6g}, loss {last['loss']:.6g}" in capsys.readouterr().out


def test_a_checkpoint_loads_with_torchs_defaults_and_holds_float32_norms(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", "precision=bf16_true", *TINY, "trainer.max_steps=2")
    state = torch.load(next((run.folder / "checkpoints").glob("update-*/state.pt")))
    dtypes = {name: tensor.dtype for name, tensor in state["model"].items() if tensor.is_floating_point()}
    norms = {name for name in dtypes if "running" in name}
    assert norms
    assert all(dtypes[name] == torch.float32 for name in norms)
    assert torch.bfloat16 in dtypes.values()


def test_what_was_not_measured_is_null_with_a_reason(tmp_path: Path) -> None:
    speed = Done(tmp_path / "r", *TINY, "trainer.max_steps=3").summary["speed"]
    assert speed["samples_per_s"] is None
    assert "3 steps, fewer than" in speed["samples_per_s_reason"]
    assert speed["n"] == 0


def test_stop_rules_end_the_run_saved_and_evaluated(tmp_path: Path) -> None:
    target = Done(tmp_path / "a", *TINY, "trainer.target=0.2", "trainer.max_epochs=20")
    assert "trainer.target" in target.summary["reason"]
    assert target.summary["steps"] < 200
    patience = Done(tmp_path / "b", *TINY, "trainer.patience=2", "optimizer.lr=1e-12", "trainer.max_epochs=20")
    assert "trainer.patience" in patience.summary["reason"]
    timed = Done(tmp_path / "c", *TINY, "trainer.max_time_s=0.001", "trainer.log_every=2", "trainer.max_epochs=20")
    assert timed.summary["steps"] == 2
    for run in (target, patience, timed):
        assert load(run.folder)["history"]["step"] == run.summary["steps"] == run.evals[-1]["step"]


def test_windows_run_on_across_epochs_and_the_last_one_may_be_short(tmp_path: Path) -> None:
    run = Done(
        tmp_path / "r", "device=cpu", "data.limit=80", "data.batch_size=16", "trainer.accumulate=8",
        "trainer.max_epochs=3", "trainer.clip_norm=1", "precision=fp16",
    )  # fmt: skip
    assert [row["samples"] for row in run.steps] == [8 * 16, 7 * 16]
    assert run.summary["epochs"] == 3


def test_the_compiled_model_follows_the_eager_one(tmp_path: Path) -> None:
    words = (*TINY, "precision=bf16", "trainer.max_steps=4", "model.dropout=0")
    eager = Done(tmp_path / "e", *words)
    compiled = Done(tmp_path / "c", *words, "trainer.compile=true")
    assert compiled.summary["precision"]["audit"] == "match"
    for a, b in zip(eager.steps, compiled.steps, strict=True):
        assert math.isclose(a["loss"], b["loss"], rel_tol=8 * 2.0**-8)  # fused kernels skip roundings to bfloat16


def test_a_checkpoint_in_its_run_folder_is_evaluated_by_its_own_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Done(tmp_path / "r", *TINY, "trainer.max_steps=4", "trainer.eval_every=2", "checkpoint.every=2")
    monkeypatch.chdir(tmp_path)
    for row in run.evals:
        where = Path("r") / "checkpoints" / f"update-{row['update']:06d}"
        capsys.readouterr()
        assert main(["eval", str(where)]) == 0
        told = capsys.readouterr().out
        assert f"loss {row['loss']:.6g}" in told
        assert where.name in told
    assert main(["eval", str(where), "--checkpoint", "elsewhere"]) == 2
    assert "name two checkpoints" in capsys.readouterr().err
