"""Faults put in on purpose are detected, named, skipped and told, in every precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mpt.config import catalog
from mpt.config.check import check, require
from mpt.config.compose import compose
from mpt.errors import ConfigError
from mpt.train.run import train
from tests.e2e._run import TINY, Done

MLP = (*TINY, "trainer.max_steps=6", "trainer.eval_every=0", "model=mlp", "model.depth=2", "model.width=32")
"""Modules 1, 3 and 5 are linear layers; 2 and 4 have no weights."""


def inject(step: int, kind: str, module: str = "3", **more: Any) -> str:
    words = {"step": step, "module": module, "kind": kind, **more}
    return "debug.inject=[{" + ",".join(f"{k}: {v}" for k, v in words.items()) + "}]"


def skip_at(run: Done, step: int) -> dict[str, Any]:
    (event,) = [event for event in run.events("skip") if event["step"] == step]
    return event


@pytest.mark.parametrize("precision", sorted(catalog.choices("precision")))
def test_the_layer_and_the_step_of_a_fault_are_named_in_every_precision(precision: str, tmp_path: Path) -> None:
    run = Done(tmp_path / "run", *MLP, f"precision={precision}", inject(3, "inf"))
    (event,) = run.events("injected")
    assert (event["step"], event["module"]) == (3, "3")
    skip = skip_at(run, 3)
    assert (skip["module"], skip["cause"], skip["forward_finite"]) == ("3", "gradient_overflow", True)
    assert skip["first_in_backward"] in ("3.weight", "3.bias")
    reached = {g["name"].partition(".")[0] for g in skip["gradients"]}
    assert {"3"} <= reached <= {"1", "3"}  # the head lies behind the fault
    bias = next(g for g in skip["gradients"] if g["name"] == "3.bias")
    assert (bias["kind"], bias["inf"], bias["nan"], bias["share"]) == ("inf", 1, 0, 1 / 32)
    assert [row["applied"] for row in run.steps] == [row["step"] != 3 for row in run.steps]
    assert len(skip["samples"]) == skip["samples_total"] == 16
    assert skip["files"] == []  # digits have none


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_layer_and_the_step_of_a_fault_are_named_in_a_compiled_model(precision: str, tmp_path: Path) -> None:
    faults = "debug.inject=[{step: 3, module: 3, kind: nan},{step: 5, module: 5, kind: inf, where: forward}]"
    run = Done(tmp_path / "run", *MLP, f"precision={precision}", "trainer.compile=true", faults)
    assert [event["step"] for event in run.events("skip")] == [3, 5]
    assert skip_at(run, 3)["module"] == "3"
    (located,) = run.events("nonfinite_forward")
    assert (located["step"], located["module"]) == (5, "5")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", ["inf", "nan"])
def test_a_fault_in_a_forward_pass_is_told_from_an_overflow(precision: str, kind: str, tmp_path: Path) -> None:
    run = Done(tmp_path / "run", *MLP, f"precision={precision}", inject(4, kind, "5", where="forward"))
    skip = skip_at(run, 4)
    assert (skip["cause"], skip["forward_finite"]) == ("nonfinite_loss", False)
    (located,) = run.events("nonfinite_forward")
    assert (located["step"], located["module"]) == (4, "5")
    assert located["input"]["nonfinite_frac"] == 0
    assert located["samples"] == [skip["samples"][0]]


def test_a_run_with_a_fault_that_never_comes_is_bit_equal_to_one_without(tmp_path: Path) -> None:
    runs = [
        Done(tmp_path / name, *MLP, "precision=fp16", *words)
        for name, words in (("plain", ()), ("armed", (inject(6, "nan", steps=1),)))
    ]
    assert [r["loss"] for r in runs[0].steps] == [r["loss"] for r in runs[1].steps]
    assert [r["grad_norm"] for r in runs[0].steps[:5]] == [r["grad_norm"] for r in runs[1].steps[:5]]


def test_an_evaluation_does_not_have_the_fault_of_its_step(tmp_path: Path) -> None:
    words = (*MLP, "trainer.eval_every=1", "precision=fp32", inject(4, "nan", "5", where="forward", steps=2))
    run = Done(tmp_path / "run", *words)
    assert [row["applied"] for row in run.steps] == [True, True, True, False, False, True]
    assert all(isinstance(row["loss"], float) for row in run.evals)


def test_a_spike_multiplies_the_gradient_and_an_underflow_makes_it_zero(tmp_path: Path) -> None:
    words = (*MLP, "optimizer=sgd", "optimizer.lr=1e-6", "trainer.log_every=1")
    plain = Done(tmp_path / "plain", *words, "precision=fp32")
    spiky = Done(tmp_path / "spiky", *words, "precision=fp32", inject(3, "spike", "5", factor=64, steps=2))
    ratios = [b["grad_norm"] / a["grad_norm"] for a, b in zip(plain.steps, spiky.steps, strict=True)]
    assert ratios[:3] == [1.0, 1.0, 64.0]
    assert ratios[3:] == pytest.approx([64, 1, 1], rel=1e-3)
    flat = Done(tmp_path / "flat", *words, "precision=fp16", inject(3, "underflow", "5", steps=4))
    assert [row["grad_norm"] for row in flat.steps[2:]] == [0.0] * 4
    assert flat.summary["losses_of_precision"]["zero_grad_share"] > 4 / 6


def test_of_a_step_whose_gradients_are_gone_the_kind_of_each_tensor_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpt.train.attempts.look", lambda run, attempt: None)  # as on a device, which no step waits for
    run = Done(tmp_path / "run", *MLP, "precision=fp32", inject(2, "nan"), "trainer.log_every=6")
    skip = skip_at(run, 2)
    assert (skip["counted"], skip["module"], skip["largest_finite"]) == (False, "3", None)
    assert {g["kind"] for g in skip["gradients"]} == {"nan"}
    assert {(g["inf"], g["nan"], g["share"]) for g in skip["gradients"]} == {(None, None, None)}
    at_the_read = Done(tmp_path / "read", *MLP, "precision=fp32", inject(6, "nan"), "trainer.log_every=6")
    assert skip_at(at_the_read, 6)["counted"]


def test_a_skip_names_the_files_of_its_batch(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(8):
            Image.new("L", (8, 8), 20 * i).save(tmp_path / "images" / name / f"{i}.png")
    words = ("device=cpu", "data=image_folder", f"data.root={tmp_path / 'images'}", "data.batch_size=4")
    words += ("model=mlp", "model.width=8", "trainer.max_steps=3", "trainer.eval_every=0", "precision=bf16")
    skip = skip_at(Done(tmp_path / "run", *words, inject(2, "nan", "1")), 2)
    assert len(skip["files"]) == len(skip["samples"]) == 4
    assert all(Path(file).name.endswith(".png") for file in skip["files"])


@pytest.mark.parametrize(
    ("word", "where", "text"),
    [
        (inject(3, "inff"), "debug.inject[0].kind", "did you mean `inf`?"),
        (inject(3, "inf", where="back"), "debug.inject[0].where", "did you mean `backward`?"),
        (inject(0, "inf"), "debug.inject[0].step", "want a number ≥ 1"),
        (inject(1, "inf", steps=0), "debug.inject[0].steps", "want a number ≥ 1"),
        (inject(1, "inf", factor=2), "debug.inject[0].factor", "no use for"),
        (inject(1, "spike", factor=-2), "debug.inject[0].factor", "finite number > 0"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(word: str, where: str, text: str) -> None:
    (problem,) = [p for p in check(compose([*MLP, word])) if p.where == where]
    assert text in str(problem)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (inject(3, "inf", "blocks.0.attention.outt"), "did you mean `blocks.0.attention.out`"),
        (inject(3, "inf", "nothing"), "there are `tokens`, `positions`, "),
        (inject(7, "inf", "blocks.0"), "the run has 6 steps"),
    ],
)
def test_a_module_or_a_step_that_is_not_there_is_refused_before_anything_is_written(
    word: str, text: str, tmp_path: Path
) -> None:
    words = ("device=cpu", "model=gpt", "data=shakespeare", "trainer.max_steps=6", f"run_dir={tmp_path / 'run'}", word)
    with pytest.raises(ConfigError, match=r"debug\.inject") as refused:
        train(require(compose(list(words))), [])
    assert text in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "where", "text"),
    [
        ("{step: 3, module: 1, kind: inf, wher: x}", "debug.inject[0].wher", "did you mean `where`?"),
        ("{module: 1, kind: inf}", "debug.inject[0].step", "is missing"),
        ("{step: 2.5, module: 1, kind: inf}", "debug.inject[0].step", "want a whole number"),
        ("{step: 2, module: 1, kind: spike, factor: x}", "debug.inject[0].factor", "want a number"),
        ("{step: 2, module: [1], kind: spike}", "debug.inject[0].module", "want a word"),
    ],
)
def test_of_a_fault_that_cant_be_read_the_key_is_named(word: str, where: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose([*MLP, f"debug.inject=[{word}]"])
    (problem,) = refused.value.problems
    assert problem.where == where
    assert text in str(problem)
