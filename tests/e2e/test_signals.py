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


SLOW = (
    "import time, torch\n"
    "from torch import nn\n"
    "class Slow(nn.Linear):\n"
    "    def forward(self, x):\n"
    "        if not self.training:\n"
    "            open('evaluating', 'a').close(); time.sleep(0.05)\n"
    "        return super().forward(x.flatten(1))\n"
    "def make(num_classes):\n"
    "    return Slow(64, num_classes)\n"
)


@pytest.mark.parametrize("every", ["null", "0"], ids=["saved before", "not saved before"])
def test_f9_a_signal_cuts_an_evaluation_short_and_whoever_resumes_makes_it(every: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    words = ("train", "model=custom", "model.path=slow.py:make", "device=cpu", "data.batch_size=16", "data.limit=160")
    words += ("data.eval_batch_size=2", f"checkpoint.every={every}", "trainer.max_steps=10")
    process = start(*words, "run_dir=r", cwd=tmp_path)
    wait_for(tmp_path / "evaluating")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert lines(tmp_path / "r" / "evals.jsonl") == []
    (tmp_path / "slow.py").write_text(SLOW.replace("time.sleep(0.05)", "pass"))
    mpt(*words, "run_dir=r", "resume=auto", cwd=tmp_path)
    assert [row["step"] for row in lines(tmp_path / "r" / "evals.jsonl")] == [10]


def test_a_second_ctrl_c_stops_at_once_and_loses_nothing_saved(tmp_path: Path) -> None:
    """The first falls into a step that does not end."""
    (tmp_path / "stuck.py").write_text(
        "import os, time\n"
        "from torch import nn\n"
        "class Stuck(nn.Linear):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        Stuck.calls += 1\n"
        "        if Stuck.calls == 8 and not os.path.exists('stuck'):\n"
        "            open('stuck', 'a').close(); time.sleep(600)\n"
        "        return super().forward(x.flatten(1))\n"
        "def make(num_classes):\n"
        "    return Stuck(64, num_classes)\n"
    )
    words = ("train", "model=custom", "model.path=stuck.py:make", "device=cpu", "data.batch_size=16")
    words += ("checkpoint.every=2", "trainer.max_steps=20", "trainer.log_every=1")
    process = start(*words, "run_dir=r", cwd=tmp_path)
    wait_for(tmp_path / "stuck")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "second Ctrl-C" in (tmp_path / "r" / "INTERRUPTED").read_text()
    assert list((tmp_path / "r" / "checkpoints").glob("update-*/COMMITTED"))
    assert mpt(*words, "run_dir=r", "resume=auto", cwd=tmp_path).returncode == 0


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert path.exists(), f"no {path.name} after a minute"


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


def test_a_signal_in_a_bench_is_not_told_as_a_fault_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, signal, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        return super().forward(x.flatten(1))\n"
        "def build():\n"
        "    return Net(64, 10)\n"
    )
    done = mpt("bench", "model=custom", "model.path=mine.py:build", "device=cpu", cwd=tmp_path, code=143)
    assert "failed" not in done.stderr
