"""Sweeps for real: jobs in fresh processes, failures with their reasons, interrupts, going on, isolation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mpt.cli import main
from mpt.errors import ExitCode
from mpt.record.reader import read_run

ROOT = Path(__file__).parents[2]
TINY = ["device=cpu", "model=mlp", "trainer.max_steps=6", "trainer.log_every=3", "trainer.eval_every=0"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def states(folder: str) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in sorted((Path(folder) / "jobs").glob("*.json"))]


def numbers(folder: Path) -> list[tuple[Any, ...]]:
    """Every column of the steps but the times."""
    return [row[:8] for row in read_run(folder).steps.rows()]


def test_jobs_that_can_not_run_or_diverge_leave_their_reasons_and_the_others_finish(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = "a sweep = ü, 1"
    words = ["precision=tf32", "precision.backend=auto,native", "optimizer.lr=0.001,1e30"]
    place = [f"hydra.sweep.dir={where}", "scaling.max_consecutive_skips=2", "optimizer=sgd"]
    assert main(["sweep", *TINY, *words, *place]) == ExitCode.JOBS_FAILED
    err = capsys.readouterr().err
    found = states(where)
    assert [s["status"] for s in found] == ["finished", "diverged", "refused", "refused"]
    assert "non-finite" in found[1]["reason"]
    assert "precision" in found[2]["reason"]
    for state in found[1:]:
        assert " ".join(state["reason"].split())[:40] in " ".join(err.split())
    before = (Path(where) / "0" / "steps.jsonl").stat().st_mtime_ns
    assert main(["sweep", "--continue", "--fail-fast", where]) == ExitCode.JOBS_FAILED
    assert (Path(where) / "0" / "steps.jsonl").stat().st_mtime_ns == before
    assert [s["status"] for s in states(where)] == ["finished", "diverged", "waiting", "waiting"]
    assert "goes on with: mpt sweep --continue" in capsys.readouterr().err


def test_an_interrupted_sweep_goes_on_with_what_is_missing() -> None:
    words = ["device=cpu", "model=mlp", "trainer.max_steps=600,5", "trainer.log_every=5", "hydra.sweep.dir=s"]
    code = "import sys; from mpt.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code, "sweep", *words], env=environment, stderr=subprocess.PIPE
    ) as sweep:
        steps = Path("s/0/steps.jsonl")
        deadline = time.monotonic() + 60
        while not (steps.is_file() and steps.stat().st_size > 500):
            assert time.monotonic() < deadline, "the first job never took a step"
            time.sleep(0.05)
        sweep.send_signal(signal.SIGINT)
        _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == ExitCode.SIGINT
    assert [s["status"] for s in states("s")] == ["interrupted", "waiting"]
    assert b"1 of 2 jobs ran" in err
    taken = read_run(Path("s/0")).steps.step[-1]
    assert main(["train", "-m", "--continue", "s"]) == ExitCode.FINISHED
    assert [s["status"] for s in states("s")] == ["finished", "finished"]
    assert read_run(Path("s/0")).steps.step == list(range(1, 601))
    assert any(e.get("kind") == "resumed" and e["step"] == taken for e in read_run(Path("s/0")).events)


def test_jobs_in_one_process_are_as_isolated_as_runs_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    precision = torch.get_float32_matmul_precision()
    assert main(["sweep", *TINY, "--in-process", "precision=tf32,fp16,fp32", "hydra.sweep.dir=s"]) == 0
    assert main(["train", *TINY, "precision=fp32", "run_dir=alone"]) == 0
    assert numbers(Path("s/2")) == numbers(Path("alone"))
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert torch.get_float32_matmul_precision() == precision
    peaks = [read_run(Path(p)).summary["memory"]["peak_bytes"] for p in ("s/2", "alone")]
    assert peaks[0] == peaks[1]
    data = {read_run(Path(f"s/{i}")).summary["data_fingerprint"] for i in range(3)}
    assert len(data) == 1
    assert Path("s/compare.html").is_file()
    capsys.readouterr()


def test_several_jobs_at_once_through_joblib() -> None:
    pytest.importorskip("joblib", reason="hydra-joblib-launcher (extra `joblib`) is not installed")
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
    words = ["precision=fp32,tf32", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=s"]
    code = "import sys; from mpt.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, "sweep", *TINY, *words], env=environment, check=False)
    assert done.returncode == 0
    assert [s["status"] for s in states("s")] == ["finished", "finished"]


def test_jobs_that_run_at_once_save_when_the_sweep_is_interrupted() -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
    words = ["device=cpu", "model=mlp", "trainer.max_steps=100000", "trainer.log_every=5", "precision=fp32,tf32,bf16"]
    place = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=s"]
    code = "import sys; from mpt.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code, "sweep", *words, *place], env=environment) as sweep:
        deadline = time.monotonic() + 90
        while not all(
            Path(f"s/{n}/steps.jsonl").is_file() and Path(f"s/{n}/steps.jsonl").stat().st_size > 500 for n in (0, 1)
        ):
            assert time.monotonic() < deadline, "the first jobs never took a step"
            time.sleep(0.05)
        sweep.send_signal(signal.SIGINT)
        assert sweep.wait(timeout=90) == ExitCode.SIGINT
    assert [s["status"] for s in states("s")] == ["interrupted", "interrupted", "waiting"]
    assert all(list(Path(f"s/{n}/checkpoints").glob("update-*")) for n in (0, 1))
