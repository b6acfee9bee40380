"""A signal ends a run saved, with its own exit code, and the same command goes on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.e2e._cli import document, lines, mpt, start
from tests.e2e.test_resume import HARD, assert_equal_runs

WORDS = ("train", "precision=bf16", *HARD, "trainer.max_steps=120")


def wait_for_steps(run: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (run / "steps.jsonl").exists() and len((run / "steps.jsonl").read_bytes().splitlines()) > count:
            return
        time.sleep(0.002)
    raise AssertionError(f"{run} has no {count} steps after a minute")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)])
def test_a_signal_saves_and_the_same_command_goes_on(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = start(*WORDS, "run_dir=broken", "resume=auto", cwd=tmp_path)
    wait_for_steps(tmp_path / "broken", 7)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "Traceback" not in output
    summary = document(tmp_path / "broken" / "summary.json")
    assert summary["status"] == "interrupted"
    assert number.name in (tmp_path / "broken" / "INTERRUPTED").read_text()
    saved = [e["step"] for e in lines(tmp_path / "broken" / "events.jsonl") if e["kind"] == "checkpoint"]
    assert saved[-1] == summary["steps"] == lines(tmp_path / "broken" / "steps.jsonl")[-1]["step"]
    if number is signal.SIGTERM:
        mpt(*WORDS, "run_dir=broken", "resume=auto", cwd=tmp_path)
        mpt(*WORDS, "run_dir=whole", cwd=tmp_path)
        assert_equal_runs(tmp_path / "broken", tmp_path / "whole")
        assert not (tmp_path / "broken" / "INTERRUPTED").exists()


def test_a_signal_during_start_up_ends_the_run_at_step_0_saved(tmp_path: Path) -> None:
    process = start(*WORDS, "run_dir=r", cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "r").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "Traceback" not in output
    assert list((tmp_path / "r" / "checkpoints").glob("update-*/COMMITTED"))
