"""The classical experiment in miniature: gradients around 1e-8, with and without a loss scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpt.record.reader import read_run
from mpt.report.sections import advice, precision
from mpt.stats.exponents import merged
from tests.e2e._run import Done

SHORT = ("recipe=digits/tiny_gradients", "device=cpu", "data.limit=640", "trainer.max_epochs=6", "trainer.eval_every=0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """One run for each way to compute it."""
    folder = tmp_path_factory.mktemp("classical")
    kinds = {
        "fp32": ("precision=fp32", "scaling=none"),
        "bf16": ("precision=bf16", "scaling=none"),
        "none": ("scaling=none",),
        "static": ("scaling=static", "scaling.init_scale=16384"),
        "dynamic": ("scaling=dynamic",),
    }
    return {name: Done(folder / name, *SHORT, "numerics_every=10", *words) for name, words in kinds.items()}


def accuracy(run: Done) -> float:
    return float(run.summary["final"]["accuracy"])


def test_gradients_are_around_1e8th(runs: dict[str, Done]) -> None:
    look = read_run(runs["fp32"].folder).numerics.looks[0]
    mean = merged(look.of("gradients").values()).mean
    assert mean is not None
    assert 1e-11 < 2**mean < 1e-7


def test_float16_without_scaling_stalls_and_says_so(
    runs: dict[str, Done], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accuracy(runs["none"]) < 0.3
    assert runs["none"].summary["losses_of_precision"]["zero_grad_share"] > 0.99
    (told,) = (text for tone, text in precision.section(read_run(runs["none"].folder)).notes if tone == "bad")
    assert "gradients became 0" in told
    Done(tmp_path / "again", *SHORT, "scaling=none", "trainer.max_steps=3")
    assert "of the gradients became 0 in float16" in capsys.readouterr().err


@pytest.mark.parametrize("scaling", ["static", "dynamic"])
def test_with_a_loss_scale_it_trains_as_float32_does(scaling: str, runs: dict[str, Done]) -> None:
    assert accuracy(runs["fp32"]) > 0.9
    assert accuracy(runs[scaling]) == pytest.approx(accuracy(runs["fp32"]), abs=0.02)
    final = [run.summary["final"]["eval_loss"] for run in (runs[scaling], runs["fp32"])]
    assert final[0] == pytest.approx(final[1], rel=0.05)
    assert runs[scaling].summary["losses_of_precision"]["zero_grad_share"] < 0.05


def test_the_advisor_would_have_said_it(runs: dict[str, Done]) -> None:
    found = advice.section(read_run(runs["bf16"].folder))
    assert found is not None
    words = found.data["recommended"]
    assert words.startswith("scaling=dynamic scaling.init_scale=")
    assert 2**10 < float(words.split()[1].partition("=")[2]) < 2**32
    by_name = {s["name"]: s for s in found.data["strategies"]}
    assert by_name["none"]["gradients_lost"] > 0.95
    assert by_name["dynamic"]["gradients_lost"] < 0.01
    at_all = advice.section(read_run(runs["none"].folder))
    assert at_all is not None
    assert at_all.data["recommended"].startswith("scaling=dynamic")
