"""Whole runs with activation checkpointing: the same record, less memory, the same faults, going on either way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mpt.build import make_plan
from mpt.checkpoint import load
from mpt.config.compose import compose
from mpt.errors import ModelError
from mpt.predict.fake import trace
from mpt.predict.memory import memory
from mpt.predict.trace import Trace
from tests.contract.test_recompute import PATH
from tests.e2e._cli import lines
from tests.e2e._run import TINY, Done
from tests.e2e.test_resume import assert_equal_runs

ON = "trainer.checkpoint_activations=true"
CNN = (*TINY[:-1], "model=custom", PATH, "trainer.max_steps=12", "trainer.eval_every=6", "trainer.log_every=3")
GPT = ("device=cpu", "model=gpt", "model.layers=4", "model.width=32", "model.heads=2", "model.dropout=0.1",
       "data=synthetic_tokens", "data.vocab=32", "data.n=64", "data.batch_size=4", "trainer.max_steps=4")  # fmt: skip
TIMES = {"time_s", "elapsed_s", "write_s", "data_wait_s", "t", "time", "timestamp"}


def both(folder: Path, *words: str) -> tuple[Done, Done]:
    without, within = Done(folder / "without", *words), Done(folder / "within", *words, ON)
    assert_equal_runs(within.folder, without.folder)
    return without, within


def told(run: Done, *kinds: str) -> list[dict[str, Any]]:
    found = [event for event in lines(run.folder / "events.jsonl") if event["kind"] in kinds]
    return [{k: v for k, v in event.items() if k not in TIMES} for event in found]


@pytest.mark.parametrize(("precision", "numerics"), [("fp16", "light"), ("fp8_delayed", "full")])
def test_statistics_of_tensors_are_those_of_a_run_without(precision: str, numerics: str, tmp_path: Path) -> None:
    words = (f"precision={precision}", f"numerics={numerics}", "numerics_every=4", "trainer.accumulate=2")
    without, within = both(tmp_path, *CNN, *words)
    assert lines(within.folder / "numerics.jsonl") == lines(without.folder / "numerics.jsonl")


@pytest.mark.parametrize(
    ("where", "module"), [("backward", "1.0.second"), ("forward", "1.1.norm"), ("backward", "1.1")]
)
def test_faults_on_purpose_hit_and_are_named_as_without(where: str, module: str, tmp_path: Path) -> None:
    fault = f"debug.inject=[{{step: 4, module: {module}, kind: inf, where: {where}}}]"
    runs = both(tmp_path, *CNN, "precision=fp16", "guard.nonfinite=skip", "trainer.accumulate=2", fault)
    kinds = ("injected", "skip", "nonfinite_forward")
    events = [told(run, *kinds) for run in runs]
    assert events[0] == events[1]
    assert {event["kind"] for event in events[0]} >= {"injected", "skip"}


def test_a_run_goes_on_with_it_switched_on_and_off_again(tmp_path: Path) -> None:
    words = (*CNN, "checkpoint.every=3", "precision=fp16")
    whole = Done(tmp_path / "whole", *words)
    Done(tmp_path / "parts", *words, ON, "trainer.max_time_s=0.001")
    Done(tmp_path / "parts", *words, "resume=auto", "trainer.max_time_s=0.001")
    on = Done(tmp_path / "parts", *words, ON, "resume=auto")
    assert on.summary["resumed_at"] == [3, 6]
    assert_equal_runs(on.folder, whole.folder)


@pytest.mark.parametrize(
    "net", [(*CNN[:-2], "precision=fp32"), (*GPT, "precision=bf16"), (*GPT, "precision=fp8")], ids=lambda net: net[-1]
)
def test_the_peak_is_lower_and_predicted(net: tuple[str, ...], tmp_path: Path) -> None:
    without, within = both(tmp_path, *net, "trainer.predict=true")
    found, before = within.summary["memory"], without.summary["memory"]
    assert found["peak_bytes"] < before["peak_bytes"]
    assert found["activations_bytes"] < before["activations_bytes"] / 1.3
    assert found["predicted_peak_bytes"] == pytest.approx(found["peak_bytes"], rel=0.05)
    saved, told = (before[key] - found[key] for key in ("peak_bytes", "predicted_peak_bytes"))
    assert told == pytest.approx(saved, rel=0.01)
    assert within.summary["speed"]["flops_per_step"] == without.summary["speed"]["flops_per_step"]


def test_the_plan_names_what_is_computed_again(tmp_path: Path) -> None:
    run = Done(tmp_path / "run", *GPT, ON)
    assert run.plan["recomputed"] == [f"blocks.{i}" for i in range(4)]
    plan = make_plan(compose([*GPT, ON]))
    assert "activations of 4 modules are computed again in the backward pass: blocks.0, blocks.1, … blocks.3" in (
        plan.lines()
    )


def work(traced: Trace, count: str) -> dict[str, int]:
    """Operations by module."""
    found: Counter[str] = Counter()
    for op in traced.ops:
        found[op.module] += getattr(op, count)
    return dict(found)


def test_a_trace_has_what_is_computed_again_in_the_backward_of_its_modules() -> None:
    words = (*GPT, "precision=bf16", "trainer.accumulate=2")
    without, within = (trace(cfg, make_plan(cfg)) for cfg in (compose([*words]), compose([*words, ON])))
    assert work(within, "flops") == work(without, "flops")
    done, before = work(within, "executed"), work(without, "executed")
    again = {name for name in done if done[name] > before[name]}
    assert again == {name for name in before if name.startswith("blocks.") and before[name]}
    micros = [op.micro for op in within.ops if op.phase != "update"]
    assert micros == sorted(micros)
    kept, all_kept = memory(within).kept, memory(without).kept
    inside = sum(size for name, size in kept.items() if name.startswith("blocks.") and name.count(".") > 1)
    assert inside < 0.05 * sum(size for name, size in all_kept.items() if name.startswith("blocks."))


def test_memory_that_runs_out_in_a_recomputation_leaves_nothing_behind(tmp_path: Path) -> None:
    run = Done(tmp_path / "run", *CNN, ON, "model.kwargs.kind=Hungry")
    assert [(event["micro_batch"], event["parts"]) for event in run.events("out_of_memory")] == [(16, 2)]
    state = load(run.folder)["model"]
    parts = 12 + sum(1 for row in run.steps if row["step"] >= run.events("out_of_memory")[0]["step"])
    assert [int(v) for k, v in state.items() if k.endswith("num_batches_tracked")] == [parts, parts]


def test_a_block_that_cant_be_computed_again_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"`1\.0` changes its input in place"):
        Done(tmp_path / "run", *CNN, ON, "model.kwargs.kind=InPlace")
    assert not (tmp_path / "run").exists()
