"""A signal during a wait for data that does not end is acted on inside the time that schedulers leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpt.train import signals
from mpt.train.signals import NothingComes, StopRequest
from tests.e2e._cli import ENV, lines, mpt
from tests.e2e.test_resume import assert_equal_runs

STUCK = """
import time, torch
from pathlib import Path

class Rows(torch.utils.data.Dataset):
    def __init__(self, split):
        self.split, self.reads = split, 0
    def __len__(self):
        return 64
    def __getitem__(self, i):
        self.reads += 1
        if Path("stuck").exists() and Path("stuck").read_text() == f"{self.split} {self.reads}":
            Path("waiting").touch()
            time.sleep(600)
        return torch.full((1, 8, 8), i / 64), i % 10

def make():
    return {"train": Rows("train"), "eval": Rows("eval"), "classes": 10}
"""
IMPATIENT = "import mpt.train.signals as s, mpt.cli; s.PATIENCE_S = 1.0; mpt.cli.entry()"
WORDS = ("train", "model=mlp", "model.width=16", "data=custom", "data.path=rows.py:make", "data.batch_size=8")
WORDS += ("device=cpu", "trainer.max_steps=20", "checkpoint.every=3", "run_dir=r", "resume=auto")


def interrupted(folder: Path, where: str, *words: str) -> str:
    """What a run says that gets SIGTERM while it waits for a read that does not end, such as `train 40`."""
    (folder / "rows.py").write_text(STUCK)
    (folder / "stuck").write_text(where)
    process = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, *WORDS, *words],
        cwd=folder,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (folder / "waiting").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)  # what was read before is trained on
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "Traceback" not in output
    (folder / "stuck").unlink()
    return output


@pytest.mark.parametrize("workers", ["0", "2"])
def test_f9_a_hung_read_of_a_first_micro_batch_ends_the_run_saved(workers: str, tmp_path: Path) -> None:
    words = ("precision=bf16", f"data.workers={workers}")
    output = interrupted(tmp_path, "train 40", *words)
    step = lines(tmp_path / "r" / "steps.jsonl")[-1]["step"]
    assert f"SIGTERM after step {step}, saved; resume=auto goes on" in output
    mpt(*WORDS, *words, cwd=tmp_path)
    if workers == "0":
        mpt(*WORDS, *words, "run_dir=whole", cwd=tmp_path)
        assert_equal_runs(tmp_path / "r", tmp_path / "whole")


def test_f9_a_hung_read_inside_a_window_leaves_the_last_checkpoint_from_which_the_run_is_equal(tmp_path: Path) -> None:
    words = ("precision=fp16", "trainer.accumulate=3", "trainer.eval_every=0", "data.batch_size=4")
    output = interrupted(tmp_path, "train 54", *words)  # step 5, second micro-batch
    assert "SIGTERM in step 5, which waits for data; resume=auto goes on after step 3" in output
    mpt(*WORDS, *words, cwd=tmp_path)
    mpt(*WORDS, *words, "run_dir=whole", cwd=tmp_path)
    assert_equal_runs(tmp_path / "r", tmp_path / "whole")


def test_f9_a_hung_read_in_an_evaluation_ends_the_run_saved(tmp_path: Path) -> None:
    assert "saved; resume=auto goes on" in interrupted(tmp_path, "eval 40", "data.workers=0")
    mpt(*WORDS, "data.workers=0", cwd=tmp_path)
    assert (tmp_path / "r" / "DONE").exists()


def test_f9_a_hung_read_of_the_very_first_batch_ends_with_the_exit_code_of_the_signal(tmp_path: Path) -> None:
    interrupted(tmp_path, "train 1", "data.workers=2")
    assert not (tmp_path / "r").exists()


def test_a_batch_that_comes_in_time_is_taken_and_computing_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "PATIENCE_S", 0.1)

    def batches() -> Iterator[int]:
        yield 1
        time.sleep(0.02)
        yield 2
        threading.Event().wait(30)
        yield 3

    got: list[int] = []

    def take(stop: StopRequest) -> None:
        for batch in stop.fetched(batches()):
            got.append(batch)
            if batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                time.sleep(0.2)  # the time is over in the midst of a computation

    before = signal.getsignal(signal.SIGALRM)
    with StopRequest() as stop, pytest.raises(NothingComes) as left:
        take(stop)
    assert (got, left.value.code) == ([1, 2], 143)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
