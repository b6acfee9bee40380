"""mpt bench: what is compared, what fits, and what is claimed. Nothing here depends on a time."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mpt.bench import measure
from mpt.bench.expert import table
from mpt.bench.measure import Result, _named
from mpt.bench.search import largest, resized
from mpt.bench.spread import Spread
from mpt.bench.tell import break_even, document, of_expert, section, speed_up
from mpt.build import build
from mpt.cli import main
from mpt.config.compose import compose
from mpt.errors import ModelError, Problem
from mpt.plan.mfu import Work
from mpt.precision import routing
from mpt.precision.switches import observed
from mpt.telemetry.memory import Memory
from mpt.types import Batch, Unmeasured


def test_what_is_reached_here_is_measured_with_the_library_that_runs_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of torch's own products went beyond 100 % on AMD CPUs."""
    seen = []
    monkeypatch.setattr(measure, "suits", lambda facts, products: products > 1e30)
    monkeypatch.setattr(routing, "proof", lambda device: {"format": "float32", "relative_error": 1e-7})
    monkeypatch.setattr(measure, "ceiling_tflops", lambda *_: seen.append(observed()["mkldnn.matmul.fp32_precision"]))
    assert main(["bench", "model=mlp", "data.limit=64", "device=cpu", "--repeats=5", "--budget-s=0.1", "--json"]) == 0
    assert seen == ["bf16"]


@pytest.mark.parametrize("most", [0, 1, 2, 3, 63, 64, 65, 1000])
@pytest.mark.parametrize("start", [1, 7, 64])
def test_the_largest_that_fits_is_found_by_doubling_and_bisecting(most: int, start: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= most

    assert largest(fits, start) == most
    assert len(tried) == len(set(tried)) <= 2 * 10 + 2


def test_the_search_ends_at_its_limit() -> None:
    assert largest(lambda size: True, 3, most=50) == 50


def test_a_resized_batch_repeats_samples_in_the_same_layout() -> None:
    inputs = torch.randn(3, 2, 4, 4).contiguous(memory_format=torch.channels_last)
    made = resized(Batch(inputs, torch.arange(3)), 7)
    assert made.targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert made.inputs.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(made.inputs[4], inputs[1])


def result(label: str = "a", step_ms: float = 10.0, noise: float = 0.0, **more: Any) -> Result:
    memory = Memory(*[1] * 11, "by hand")  # type: ignore[arg-type]
    none = Unmeasured("not looked at")
    plain: dict[str, Any] = dict(
        label=label, cfg=compose(["device=cpu"]), emulated=False, effective="float32", samples=64,
        step_ms=Spread(step_ms, step_ms, step_ms * (1 + noise), 5), expert_ms=none, memory=memory,
        work=Work({"float32": 10}), mfu=none, peak_tflops=none, ceiling_share=none, compile_s=none, largest=None,
    )  # fmt: skip
    return Result(**{**plain, **more})


def test_a_speed_up_is_claimed_only_for_quiet_native_figures() -> None:
    first = result()
    assert speed_up(result(step_ms=5.0), first) == 2.0
    assert isinstance(speed_up(result(noise=0.2), first), Unmeasured)
    assert speed_up(result(emulated=True), first) == Unmeasured("emulated: no speed is claimed")
    shown = section([first, result("b", noise=0.2)], "here")
    assert shown.tables[0].rows[1][1].endswith("void")
    assert shown.tables[0].rows[1][4] == "n/a"


def test_the_share_of_the_experts_time_is_void_where_either_side_is_and_told_which_way_is_good() -> None:
    quiet, noisy = Spread(8.0, 8.0, 8.0, 5), Spread(8.0, 8.0, 9.6, 5)
    assert of_expert(result(expert_ms=quiet)) == 1.25
    assert isinstance(of_expert(result(expert_ms=noisy)), Unmeasured)
    assert isinstance(of_expert(result(noise=0.2, expert_ms=quiet)), Unmeasured)
    shown = section([result("a", expert_ms=quiet), result("b", expert_ms=noisy)], "here")
    assert [row[-1] for row in shown.tables[0].rows] == ["1.250", "n/a"]
    notes = " ".join(text for _, text in shown.notes)
    assert "below 1 is faster than it" in notes
    assert "hand-written loop's p90 lies more than 10% above its p10 (b)" in notes


def test_compiling_pays_after_its_seconds_over_the_gain_of_a_step() -> None:
    eager = result(step_ms=30.0)
    compiled = result("c", step_ms=20.0, compile_s=5.0)
    assert break_even(eager, compiled) == 500
    assert break_even(compiled, replace(eager, compile_s=1.0)) == Unmeasured("compiled steps are not faster")


def test_a_document_is_strict_json_with_reasons() -> None:
    found = json.loads(json.dumps(document([result()], {}), allow_nan=False))["results"][0]
    assert found["mfu"] is None
    assert found["mfu_reason"] == "not looked at"
    assert found["memory"]["peak_bytes"] == 1


TINY = ("model=mlp", "model.width=8", "data.limit=64", "data.batch_size=16", "device=cpu", "--repeats", "5")


def test_bench_compares_precisions_with_each_other_and_with_the_experts_loop(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("precision=fp32,bf16,fp16", "--against", "expert", "--budget-s", "0.01", "--json")
    assert main(["bench", *TINY, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    fp32, bf16, fp16 = found["results"]
    assert [r["label"] for r in (fp32, bf16, fp16)] == ["precision=fp32", "precision=bf16", "precision=fp16"]
    assert fp32["step_ms"]["n"] == bf16["step_ms"]["n"] == 5
    assert fp32["expert_ms"]["n"] == 5
    assert fp16["expert_ms"] is None
    assert fp16["speed_up"] is None
    assert "no speed is claimed" in fp16["mfu_reason"]
    assert fp32["flops_per_step"] == bf16["flops_per_step"] > 0
    assert fp32["memory"]["peak_bytes"] > 0
    assert not any(tmp_path.iterdir())


def test_auto_finds_a_batch_and_keeps_that_of_an_update(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpt.bench.cell.Cell.largest_batch", lambda cell: (5, "by hand"))
    assert main(["bench", *TINY, "data.batch_size=auto", "--budget-s", "0.01"]) == 2  # said twice
    words = [word for word in TINY if not word.startswith("data.batch_size")]
    capsys.readouterr()
    assert main(["bench", *words, "data.batch_size=auto", "--budget-s", "0.01"]) == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "micro-batches up to 5 fit (by hand); measured with 4 × 16" in shown


def test_what_can_not_be_had_says_why_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in TINY if not word.startswith("data.batch_size")]
    words += ["optimizer=lbfgs", "data.batch_size=auto", "--against", "expert", "--budget-s", "0.01"]
    assert main(["bench", *words]) == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "which micro-batches fit is not known: optimizer=lbfgs: decides by its numbers how often" in shown
    assert "no hand-written loop beside it: it is written for fp32 and bf16 with AdamW" in shown
    assert main(["bench", *words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["largest_batch"] is None
    assert "decides by its numbers" in found["largest_batch_reason"]


def test_one_configuration_twice_is_measured_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *TINY, "precision=fp32,fp32", "--budget-s", "0.01", "--json"]) == 0
    one, other = json.loads(capsys.readouterr().out)["results"]
    assert (one["label"], other["label"]) == ("precision=fp32", "precision=fp32 (2)")
    assert one["step_ms"] != other["step_ms"]


def test_the_experts_table_holds_the_batches_that_fit_and_no_other_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    run = build(compose(list(TINY[:-2])))
    whole = table(run, 3)
    assert len(whole.inputs) == len(whole.targets) == 48  # of 64 samples
    batches = run.data.train(start=0)
    for rows in whole.rows:
        batch = next(batches)
        assert torch.equal(whole.look(whole.inputs[rows]), batch.inputs)
        assert torch.equal(whole.targets[rows], batch.targets)
    monkeypatch.setattr("mpt.bench.expert.MOST_BYTES", 5 * batch.inputs.nbytes // 2)
    assert len(table(run, 3).rows) == 2


def test_bench_refuses_before_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "precision=fp32,bf17"]) == 2
    assert "bf17" in capsys.readouterr().err
    assert main(["bench", "--against", "me"]) == 2


@pytest.mark.parametrize("words", [("--repeats", "0"), ("--budget-s", "-1"), ("--budget-s", "nan")])
def test_an_effort_that_is_none_is_refused(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "model=mlp", *words]) == 2
    assert f"{words[0]}: got" in capsys.readouterr().err


def test_a_configuration_that_fails_among_several_is_named() -> None:
    with pytest.raises(ModelError, match=r"no \(with model=a\)") as raised, _named("model=a", among_others=True):
        raise ModelError(Problem("model", "no", "try"))
    assert raised.value.problems[0].hint == "try"
    with pytest.raises(ModelError, match=r"no$"), _named("model=a", among_others=False):
        raise ModelError(Problem("model", "no"))
