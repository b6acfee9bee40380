"""`mpt checkpoint`: contents, what a precision would lose, weights for other programs; and older schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mpt.build import make_plan
from mpt.checkpoint import CheckpointStore, load
from mpt.checkpoint import marker as marker_module
from mpt.checkpoint.lint import Target, lint
from mpt.checkpoint.weights import weights_of
from mpt.cli import main
from mpt.config.compose import compose
from mpt.errors import ExitCode
from mpt.formats.operand import parse
from mpt.formats.table import format_of
from tests.e2e._run import TINY, Done


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Done:
    words = ("precision=fp16_master", "trainer.max_steps=6", "trainer.ema_decay=0.5")
    return Done(tmp_path_factory.mktemp("run") / "r", *TINY, *words)


def test_lint_agrees_with_torchs_casts_on_which_numbers_are_lost() -> None:
    torch.manual_seed(0)
    x = torch.randn(4000) * torch.logspace(-12, 6, 4000)
    x[:7] = 0.0
    weights = {"w": x, "count": torch.tensor(3), "broken": torch.tensor([float("nan"), 1.0])}
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16), ("float8_e5m2", torch.float8_e5m2)):
        row, broken = lint(weights, [Target("as stored", format_of(name))])
        there = x != 0
        cast = x.to(dtype).float()
        assert row.numbers == 4000
        assert row.overflow == int((cast.isinf() & there).sum()) / int(there.sum())
        assert row.underflow == int(((cast == 0) & there).sum()) / int(there.sum())
        assert (row.largest, row.smallest) == (float(x.abs().max()), float(x[there].abs().min()))
        assert broken.nonfinite == 1


def test_lint_gives_an_operand_its_scale_so_that_nothing_overflows_and_the_far_smaller_vanishes() -> None:
    x = torch.full((4, 32), 1000.0)
    x[0, 0] = 1e-6
    (tensor_wide,) = lint({"w": x, "bias": torch.ones(3)}, [Target("as an operand", parse("e4m3/tensor", "x"))])
    assert (tensor_wide.tensor, tensor_wide.overflow) == ("w", 0)
    assert tensor_wide.underflow == pytest.approx(1 / 128)


def test_lint_names_tensors_and_shares(averaged: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = load(averaged.folder)
    name = next(iter(state["policy"]["masters"]))
    state["policy"]["masters"][name][0] = 1e6
    folder = CheckpointStore(tmp_path / "checkpoints", 1).save(state, step=6, update=6)
    assert main(["checkpoint", "lint", str(folder), "--precision", "fp16,bf16,mxfp4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bad"]
    assert [(f["tensor"], f["target"]) for f in found["fp16"] if f["overflow"]] == [(name, "float16 (as multiplied)")]
    assert not any(f["overflow"] for f in found["bf16"])
    assert any("mx" in f["target"] and f["underflow"] > 0 for f in found["mxfp4"])
    assert main(["checkpoint", "lint", str(folder), "--precision", "fp16"]) == 0
    assert "overflow (largest 1e+06)" in capsys.readouterr().out


def test_lint_looks_at_operands_of_the_layers_that_the_policy_takes_in_the_runs_own_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Done(tmp_path / "r", *TINY, "model.width=64", "trainer.max_steps=2")
    plan = make_plan(compose(["device=cpu", *TINY, "model.width=64", "precision=mxfp8"]))
    low = {f"{row.name}.weight" for row in plan.rows if row.compute not in ("bfloat16", "follows", "float32")}
    assert 0 < len(low) < sum(row.kind == "gemm" for row in plan.rows)
    name = "mxfp8,mxfp4"
    assert main(["checkpoint", "lint", str(run.folder), "--precision", name, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["bad"]["mxfp4"]
    found = {row["tensor"] for row in rows if "operand" in row["target"]}
    assert found
    assert found <= low
    assert main(["checkpoint", "lint", str(run.folder), "--precision", name]) == 0
    assert f"(as an operand in {len(low)} of " in capsys.readouterr().out
    (run.folder / "config.yaml").unlink()
    assert main(["checkpoint", "lint", str(run.folder), "--precision", name]) == 0
    assert "(as an operand, if all layers took part)" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [(), ("--averaged",)])
def test_exported_weights_are_the_finest_there_are(averaged: Done, flags: tuple[str, ...], tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file

    out = tmp_path / "w.safetensors"
    assert main(["checkpoint", "export", str(averaged.folder), str(out), *flags]) == 0
    got, state = load_file(out), load(averaged.folder)
    want = {**state["model"], **state["policy"]["masters"]}
    assert got.keys() == want.keys()
    same = [name for name in want if torch.equal(got[name], want[name])]
    trained = state["trained"]
    assert len(same) == len(want) if not flags else not set(same) & set(trained)
    assert all(got[name].dtype == torch.float32 for name in trained)
    with safe_open(out, "pt") as file:
        assert file.metadata()["step"] == "6"
        assert file.metadata()["weights"] == ("averaged" if flags else "current")
    assert main(["checkpoint", "export", str(averaged.folder), str(out)]) == 2  # never over a file


def test_exported_averages_evaluate_as_the_run_did(averaged: Done) -> None:
    """A run that starts from the averaged weights has, before its first step, the run's own last evaluation."""
    from mpt.build import build
    from mpt.config.compose import compose
    from mpt.train.evaluate import evaluate

    state = load(averaged.folder)
    run = build(compose([*TINY]))
    run.model.load_state_dict(weights_of(state, averaged=True, where=""))
    metrics = evaluate(run.model, run.policy, run.task, run.data, "fp32")
    assert metrics["loss"] == pytest.approx(averaged.evals[-1]["loss"], rel=2.0**-9)  # theirs computed in float16
    run.data.close()


def test_an_average_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Done(tmp_path / "r", *TINY, "trainer.max_steps=1")
    assert main(["checkpoint", "export", str(run.folder), str(tmp_path / "w"), "--averaged"]) == 2
    assert "holds no average" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_show_tells_where_it_stands_and_who_wrote_it(averaged: Done, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "show", str(averaged.folder)]) == 0
    told = capsys.readouterr().out
    assert "step 6, update 6, mpt.checkpoint/2" in told
    assert f"torch {torch.__version__}" in told
    assert main(["checkpoint", "show", str(averaged.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts_bytes"]["model"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "wants a verb"),
        (["lnit", "x"], "did you mean `lint`"),
        (["lint"], "want 1"),
        (["lint", "nowhere", "--precision", "fp17"], "fp16"),
        (["lint", "nowhere", "--precision", "fp16"], "no such file or folder"),
        (["lint", "nowhere"], "--precision"),
    ],
    ids=str,
)
def test_wrong_words_get_a_next_move(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", *words]) == 2
    assert told in capsys.readouterr().err


def as_schema_1(run: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's newest checkpoint as the first schema's code wrote it."""

    def older(state: dict[str, Any]) -> dict[str, Any]:
        state = {k: v for k, v in state.items() if k not in ("trained", "versions", "place", "energy")}
        state["buffers"] = {"flat": state["buffers"]["flat"]}
        state["progress"] = {k: v for k, v in state["progress"].items() if k != "parts"}
        return state

    state = older(load(run.folder))
    make: Callable[..., Any] = marker_module.Marker
    with monkeypatch.context() as patch:
        patch.setattr("mpt.checkpoint.store.Marker", lambda **given: make(**given, schema="mpt.checkpoint/1"))
        totals = state["history"]
        store = CheckpointStore(run.folder / "checkpoints", 2)
        store.save(state, step=totals["step"], update=totals["update"])


def test_a_checkpoint_of_the_first_schema_is_gone_on_from_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY, "trainer.ema_decay=0.9", "trainer.max_steps=9", "checkpoint.every=3")
    whole = Done(tmp_path / "whole", *words)
    broken = Done(tmp_path / "broken", *words, "trainer.max_time_s=0.001", "trainer.log_every=3")
    assert broken.summary["steps"] < 9
    as_schema_1(broken, monkeypatch)
    assert marker_module.verify(max((broken.folder / "checkpoints").glob("update-*"))).schema == "mpt.checkpoint/1"
    assert main(["checkpoint", "export", str(broken.folder), str(tmp_path / "w"), "--averaged"]) == 2
    assert "did not name what it averaged" in capsys.readouterr().err
    assert Done(tmp_path / "broken", *words, "resume=auto").steps[-1]["loss"] == whole.steps[-1]["loss"]


def test_a_checkpoint_that_is_not_there_any_more_is_told_with_those_that_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("update-000015", "update-000020"):
        (tmp_path / "r" / "checkpoints" / name).mkdir(parents=True)
    gone, there = str(tmp_path / "r" / "checkpoints" / "update-000012"), "there are update-000020, update-000015"
    assert main(["checkpoint", "show", gone]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert "there is no such file or folder" in told
    assert there in told
    assert main(["train", f"resume={gone}"]) == ExitCode.REFUSED
    assert "there are update-000015, update-000020" in capsys.readouterr().err
