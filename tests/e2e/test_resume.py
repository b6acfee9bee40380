"""Killed anywhere and resumed by the same command, a run is the unbroken one, bit for bit."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mpt.checkpoint import load
from mpt.errors import CheckpointError
from tests.e2e._cli import document, lines, mpt, start
from tests.e2e._run import TINY, Done

HARD = (
    "data.limit=400",
    "data.batch_size=16",
    "model.dropout=0.2",
    "trainer.accumulate=3",
    "trainer.ema_decay=0.95",
    "trainer.clip_norm=1.0",
    "trainer.max_steps=60",
    "trainer.eval_every=20",
    "trainer.log_every=7",
    "checkpoint.every=6",
    "schedule=cosine",
    "schedule.warmup=5",
    "device=cpu",
)
TIMES = ("time_s", "data_wait_s")


def untimed(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in lines(run / "steps.jsonl")]


def same_tensors(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_tensors(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same_tensors(x, y) for x, y in zip(a, b, strict=True))
    return True


def assert_equal_runs(broken: Path, whole: Path) -> None:
    assert untimed(broken) == untimed(whole)
    assert lines(broken / "evals.jsonl") == lines(whole / "evals.jsonl")
    a, b = load(broken), load(whole)
    for part in ("model", "policy", "optimizer", "scaler", "buffers", "ema", "rng"):
        assert same_tensors(a[part], b[part]), part
    assert document(broken / "summary.json")["status"] == "done"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp8_delayed", "nvfp4"])
def test_a_run_killed_twice_and_resumed_equals_the_unbroken_one(precision: str, tmp_path: Path) -> None:
    words = ("train", f"precision={precision}", *HARD)
    if precision == "fp16":  # starts too high, so that skipped steps lie on both sides of the kills
        words += ("scaling.init_scale=16777216", "scaling.growth_interval=9")
    mpt(*words, "run_dir=whole", cwd=tmp_path)
    draw, broken = random.Random(precision), tmp_path / "broken"
    for _ in range(2):
        process = start(*words, "run_dir=broken", "resume=auto", cwd=tmp_path)
        wanted = draw.randint(7, 40)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if (broken / "steps.jsonl").exists() and len((broken / "steps.jsonl").read_bytes().splitlines()) > wanted:
                break
            time.sleep(0.002)
        process.kill()
        process.communicate()
    mpt(*words, "run_dir=broken", "resume=auto", cwd=tmp_path)
    assert_equal_runs(broken, tmp_path / "whole")
    skipped = document(broken / "summary.json")["skipped"]
    assert skipped > 0 if precision == "fp16" else skipped == 0


def test_a_finished_run_is_left_alone_by_resume_auto(tmp_path: Path) -> None:
    words = ("train", "trainer.max_steps=3", "run_dir=r", "resume=auto", "device=cpu")
    mpt(*words, cwd=tmp_path)
    before = (tmp_path / "r" / "steps.jsonl").read_bytes()
    assert "finished already" in mpt(*words, cwd=tmp_path).stderr
    assert (tmp_path / "r" / "steps.jsonl").read_bytes() == before


def test_a_run_that_goes_on_keeps_the_command_that_began_it(tmp_path: Path) -> None:
    mpt("train", "trainer.max_steps=3", "run_dir=r", "model=mlp", "device=cpu", cwd=tmp_path)
    mpt(
        "train",
        "trainer.max_steps=5",
        "model=mlp",
        "device=cpu",
        "resume=r",
        "checkpoint.allow_changes=true",
        cwd=tmp_path,
    )
    first, second, *_ = (tmp_path / "r" / "source.txt").read_text().splitlines()
    assert first.startswith("command: mpt train trainer.max_steps=5")
    assert second == "begun by: mpt train trainer.max_steps=3 run_dir=r model=mlp device=cpu"


def test_a_checkpoint_resumed_into_a_new_folder_brings_its_history(tmp_path: Path) -> None:
    words = ("train", *HARD)
    mpt(*words, "run_dir=whole", cwd=tmp_path)
    first = min((tmp_path / "whole" / "checkpoints").glob("update-*"))
    mpt(*words, "run_dir=again", f"resume={first}", cwd=tmp_path)
    assert_equal_runs(tmp_path / "again", tmp_path / "whole")


def test_a_changed_configuration_is_refused_and_named_unless_allowed(tmp_path: Path) -> None:
    words = ("train", "trainer.max_steps=4", "checkpoint.every=2", "run_dir=r", "device=cpu")
    mpt(*words, cwd=tmp_path)
    (tmp_path / "r" / "DONE").unlink()
    refused = mpt(*words, "resume=auto", "optimizer.lr=0.5", "data.batch_size=32", cwd=tmp_path, code=2).stderr
    assert "optimizer.lr" in refused
    assert "data.batch_size" in refused
    assert "checkpoint.allow_changes=true" in refused
    mpt(*words, "resume=auto", "optimizer.lr=0.5", "checkpoint.allow_changes=true", cwd=tmp_path)
    resumed = [e for e in lines(tmp_path / "r" / "events.jsonl") if e["kind"] == "resumed"]
    assert any("optimizer.lr" in line for line in resumed[-1]["changed"])


def test_a_run_begun_from_weights_is_resumed_by_the_same_command(tmp_path: Path) -> None:
    Done(tmp_path / "base", *TINY, "trainer.max_steps=2")
    words = (*TINY, f"init_from={tmp_path / 'base'}", "resume=auto", "trainer.max_steps=4", "checkpoint.every=2")
    whole, broken = Done(tmp_path / "whole", *words), Done(tmp_path / "broken", *words)
    (broken.folder / "DONE").unlink()
    shutil.rmtree(broken.folder / "checkpoints" / "update-000004")
    assert Done(broken.folder, *words).events("resumed")
    assert_equal_runs(broken.folder, whole.folder)


def test_a_checkpoint_of_another_model_is_refused_by_the_names_of_its_tensors(tmp_path: Path) -> None:
    mpt("train", "trainer.max_steps=2", "run_dir=r", "device=cpu", cwd=tmp_path)
    refused = mpt("train", "model=mlp", "init_from=r", "run_dir=s", "device=cpu", cwd=tmp_path, code=2).stderr
    assert "another model" in refused
    assert not (tmp_path / "s").exists()


def test_lines_of_the_record_that_are_lost_are_told_on_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY, "trainer.max_steps=4", "checkpoint.every=2", "resume=auto")
    run = Done(tmp_path / "r", *words)
    (run.folder / "DONE").unlink()
    shutil.copytree(run.folder, tmp_path / "copy")
    whole = (run.folder / "steps.jsonl").read_bytes()
    (run.folder / "steps.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    capsys.readouterr()
    Done(run.folder, *words)
    assert "steps.jsonl has" in capsys.readouterr().err
    assert "steps are lost" in run.events("resumed")[-1]["changed"][0]
    (tmp_path / "copy" / "steps.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    elsewhere = Done(tmp_path / "new", *words[:-1], f"resume={tmp_path / 'copy'}")
    assert "steps are lost" in elsewhere.events("resumed")[-1]["changed"][0]


def test_a_run_whose_checkpoints_lie_elsewhere_is_not_begun_anew_over_its_record(tmp_path: Path) -> None:
    words = (*TINY, "trainer.max_steps=4", "checkpoint.every=2", "resume=auto")
    there = f"checkpoint.dir={tmp_path / 'there'}"
    run = Done(tmp_path / "r", *words, there)
    (run.folder / "DONE").unlink()
    before = (run.folder / "steps.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=rf"those of this run lie in {tmp_path}/there\n.*{there}"):
        Done(run.folder, *words)
    assert (run.folder / "steps.jsonl").read_bytes() == before
    assert Done(run.folder, *words, there).events("resumed")


def test_a_run_that_begins_anew_for_want_of_a_checkpoint_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY, "trainer.max_steps=4", "checkpoint.every=2", "resume=auto")
    run = Done(tmp_path / "r", *words)
    (run.folder / "DONE").unlink()
    shutil.rmtree(run.folder / "checkpoints")
    capsys.readouterr()
    Done(run.folder, *words)
    told = f"{run.folder} has no checkpoint to go on from: it begins anew, and its record of 4 steps with it"
    assert told in capsys.readouterr().err
    assert run.events("started")[-1]["notes"] == [told]
    assert len(run.steps) == 4
