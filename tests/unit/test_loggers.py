"""Loggers get the record's numbers, and none of them can stop a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpt import registry
from mpt.config import _combinations
from mpt.config.check import check
from mpt.config.compose import compose
from mpt.loggers import RunInfo
from mpt.loggers._follow import Follower, following
from mpt.record.writer import RunWriter
from mpt.types import StepRow

NAN = math.nan


class Kept:
    """A logger that keeps what it is given, and breaks when told to."""

    def __init__(self, breaks: str = "") -> None:
        self.breaks = breaks
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.status = ""
        self.info: RunInfo | None = None

    def open_logger(self, run: RunInfo) -> Kept:
        self.info = run
        if self.breaks == "open":
            raise ConnectionError("no route\nto host")
        return self

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.breaks == "log":
            raise ValueError("full")
        self.rows.append((step, dict(values)))

    def finish(self, status: str) -> None:
        if self.breaks == "finish":
            raise SystemError
        self.status = status


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(name: str = "kept", breaks: str = "") -> Kept:
        made = Kept(breaks)
        monkeypatch.setitem(registry._plugins, ("loggers", name), made)
        return made

    return make


def row(step: int, **changes: Any) -> StepRow:
    return StepRow(step, step, True, 1 / step, 1e-3, 2.0, 8.0, 32, 0.5, 0.0)._replace(**changes)


def run(folder: Path, *names: str, every: int = 1, marker: str = "DONE", rows: list[StepRow] | None = None) -> None:
    with RunWriter(folder) as writer, following(folder, names, "mine", every):
        writer.text("config.yaml", "seed: 3\nmodel: {name: mlp, width: 4}\n")
        writer.steps(rows or [row(i) for i in range(1, 7)])
        writer.evaluation({"step": 6, "update": 6, "accuracy": 0.5, "loss": 1.25, "best": True, "precision": "same"})
        writer.finish(marker, "over")


def test_a_logger_gets_the_numbers_of_the_record(tmp_path: Path, kept: Any) -> None:
    seen = kept()
    run(tmp_path, "kept")
    assert [step for step, _ in seen.rows] == [1, 2, 3, 4, 5, 6, 6]
    assert seen.rows[1][1] == {
        "train/loss": 0.5, "train/lr": 1e-3, "train/grad_norm": 2.0, "train/scale": 8.0, "train/skipped": 0.0,
        "train/nonfinite_losses": 0.0, "train/samples_per_s": 64.0,
    }  # fmt: skip
    assert seen.rows[-1][1] == {"eval/accuracy": 0.5, "eval/loss": 1.25}
    assert seen.status == "done"
    assert seen.info is not None
    assert seen.info.config == {"seed": 3, "model.name": "mlp", "model.width": 4}


def test_between_log_points_only_skips_and_non_finite_losses_are_told_and_counted(tmp_path: Path, kept: Any) -> None:
    seen = kept()
    rows = [row(1), row(2, loss=NAN), row(3, applied=False, grad_norm=math.inf), row(4), row(5)]
    run(tmp_path, "kept", every=4, rows=rows, marker="DIVERGED")
    told = dict(seen.rows[:-1])
    assert list(told) == [2, 3, 4]
    assert "train/loss" not in told[2]
    assert "train/grad_norm" not in told[3]
    assert (told[4]["train/nonfinite_losses"], told[4]["train/skipped"]) == (1.0, 1.0)
    assert seen.status == "diverged"


@pytest.mark.parametrize("breaks", ["open", "log", "finish"])
def test_a_logger_that_fails_is_told_once_and_stops_neither_the_run_nor_the_others(
    breaks: str, tmp_path: Path, kept: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    kept("broken", breaks)
    whole = kept("whole")
    run(tmp_path, "broken", "whole")
    err = capsys.readouterr().err
    assert err.count("logger broken is out (") == 1
    assert "the run goes on" in err
    assert len(whole.rows) == 7
    assert (tmp_path / "DONE").exists()


def test_what_was_there_before_is_not_told_again(tmp_path: Path, kept: Any) -> None:
    seen = kept()
    with RunWriter(tmp_path) as writer:
        writer.text("config.yaml", "seed: 3\n")
        writer.steps([row(1), row(2)])
        follower = Follower(tmp_path, ["kept"], "mine", 1)
        writer.steps([row(3)])
        follower.look()
        writer.steps([row(4)])
        follower.look()
        follower.look()
    assert [step for step, _ in seen.rows] == [3, 4]


def test_without_loggers_no_thread_is_started(tmp_path: Path) -> None:
    import threading

    before = threading.active_count()
    with following(tmp_path, [], "x", 1):
        assert threading.active_count() == before


def test_a_tracker_that_is_not_installed_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_combinations, "find_spec", lambda name: None)
    (problem,) = check(compose(["logger=wandb"]))
    assert (problem.where, problem.what) == ("logger", "`wandb` is not installed")
    assert problem.hint.startswith("pip install wandb;")
    monkeypatch.setattr(_combinations, "find_spec", lambda name: SimpleNamespace())
    assert check(compose(["logger=[wandb,mlflow]"])) == []


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard (extra) is not installed"
    )
    run(tmp_path, "tensorboard")
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(i, pytest.approx(1 / i)) for i in range(1, 7)]
    assert [e.value for e in events.Scalars("eval/accuracy")] == [0.5]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_finds_the_run_with_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow (extra) is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    run(tmp_path / "run", "mlflow")
    client = mlflow.tracking.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("mpt").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["model.width"] == "4"
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(i, 1 / i) for i in range(1, 7)]


@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb (extra) is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(tmp_path / "run", "wandb")
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert any(path.suffix == ".wandb" and path.stat().st_size > 0 for path in folder.iterdir())


@pytest.mark.filterwarnings("ignore")
def test_trackio_keeps_the_run_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason="trackio (extra) is not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))
    for name in [name for name in sys.modules if name.startswith("trackio")]:
        monkeypatch.delitem(sys.modules, name)  # it reads its folder when it is imported
    run(tmp_path / "run", "trackio")
    assert any(path.stat().st_size > 0 for path in (tmp_path / "kept").rglob("*.db"))
