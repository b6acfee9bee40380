"""Going on: what a checkpoint leaves to do, averages, weights from elsewhere, and ends that are none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from mpt.checkpoint import CheckpointStore, load
from mpt.errors import CheckpointError
from mpt.train.eval_run import evaluate
from tests.e2e._run import TINY, Done

EPOCHS = (*TINY, "trainer.max_epochs=4", "trainer.ema_decay=0.9")


def forget_after(folder: Path, name: str) -> None:
    """As if the run had been killed right after the save of that checkpoint, before anything else."""
    for path in (folder / "checkpoints").glob("update-*"):
        if path.name > name:
            shutil.rmtree(path)
    (folder / "DONE").unlink()


def test_an_evaluation_that_a_kill_cut_off_is_made_on_resume(tmp_path: Path) -> None:
    whole = Done(tmp_path / "whole", *EPOCHS, "checkpoint.keep=9")
    broken = Done(tmp_path / "broken", *EPOCHS, "checkpoint.keep=9")
    forget_after(broken.folder, "update-000020")
    Done(tmp_path / "broken", *EPOCHS, "checkpoint.keep=9", "resume=auto")
    assert [row["step"] for row in whole.evals] == [10, 20, 30, 40]
    assert broken.evals == whole.evals
    assert broken.summary["best"] == whole.summary["best"]
    stores = [CheckpointStore(run.folder / "checkpoints", 9) for run in (whole, broken)]
    assert stores[0].best().name == stores[1].best().name  # type: ignore[union-attr]


def test_patience_stops_a_resumed_run_where_it_stops_the_unbroken_one(tmp_path: Path) -> None:
    words = (*TINY, "trainer.max_epochs=9", "trainer.patience=2", "optimizer.lr=1e-12", "checkpoint.keep=9")
    whole = Done(tmp_path / "whole", *words)
    broken = Done(tmp_path / "broken", *words)
    forget_after(broken.folder, "update-000020")
    Done(tmp_path / "broken", *words, "resume=auto")
    assert broken.summary["steps"] == whole.summary["steps"] < 90


@pytest.mark.parametrize("eval_precision", ["same", "fp32"])
def test_an_evaluation_under_the_average_computes_with_the_average(eval_precision: str, tmp_path: Path) -> None:
    words = (
        *TINY,
        "precision=fp16_master",
        "trainer.max_steps=20",
        "optimizer.lr=0.02",
        f"trainer.eval_precision={eval_precision}",
    )
    run = Done(tmp_path / "r", *words, "trainer.ema_decay=0.99")
    plain = Done(tmp_path / "p", *words)
    state, other = load(run.folder), load(plain.folder)
    assert torch.equal(state["model"]["0.weight"], other["model"]["0.weight"])
    # twenty steps from random weights: an average with decay 0.99 is nearly the untrained net
    assert run.evals[-1]["weights"] == "ema"
    assert run.evals[-1]["loss"] > 1.2 * plain.evals[-1]["loss"]


def test_weights_from_elsewhere_start_the_average(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Done(tmp_path / "a", *TINY, "trainer.max_epochs=2")
    words = (*TINY, f"init_from={first.folder}", "trainer.ema_decay=0.999", "optimizer.lr=1e-12", "trainer.max_steps=1")
    second = Done(tmp_path / "b", *words)
    assert second.evals[-1]["loss"] == pytest.approx(first.evals[-1]["loss"], rel=0.02)  # one step of batch norm
    capsys.readouterr()
    assert evaluate(str(first.folder), ["trainer.ema_decay=0.5"], None) == 0
    assert f"loss {first.evals[-1]['loss']:.6g}" in capsys.readouterr().out


def test_a_run_that_ran_out_of_time_goes_on_with_more_of_it(tmp_path: Path) -> None:
    words = (*TINY, "trainer.max_epochs=2", "trainer.log_every=5")
    short = Done(tmp_path / "r", *words, "trainer.max_time_s=0.001")
    assert short.summary["steps"] < 20
    assert Done(tmp_path / "r", *words, "resume=auto").summary["steps"] == 20


def test_a_finished_run_goes_on_to_a_longer_length_only_when_allowed(tmp_path: Path) -> None:
    words = (*TINY, "schedule=constant")
    Done(tmp_path / "r", *words, "trainer.max_steps=4")
    with pytest.raises(CheckpointError, match="max_steps"):
        Done(tmp_path / "r", *words, "trainer.max_steps=8", "resume=auto")
    assert (tmp_path / "r" / "DONE").exists()
    longer = Done(tmp_path / "r", *words, "trainer.max_steps=8", "resume=auto", "checkpoint.allow_changes=true")
    assert [row["step"] for row in longer.steps] == list(range(1, 9))
    with pytest.raises(CheckpointError, match=r"trainer\.max_steps: .*\n.*give at least that many"):
        Done(tmp_path / "r", *words, "trainer.max_steps=3", "resume=auto", "checkpoint.allow_changes=true")


def test_the_last_checkpoint_resumed_into_a_new_folder_is_saved_there(tmp_path: Path) -> None:
    run = Done(tmp_path / "a", *TINY, "trainer.max_steps=4")
    again = Done(tmp_path / "b", *TINY, "trainer.max_steps=4", f"resume={run.folder}")
    assert load(again.folder)["history"]["step"] == 4
    assert again.steps == run.steps


def test_a_new_best_between_two_saves_is_saved(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *TINY, "trainer.max_epochs=2", "trainer.eval_every=7", "checkpoint.every=30")
    best = run.summary["best"]
    store = CheckpointStore(run.folder / "checkpoints", 2)
    assert store.best() == store.dir / f"update-{best['update']:06d}"


def test_frozen_batch_norms_stay_frozen_and_shared_buffers_shared(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self, n):\n"
        "        super().__init__()\n"
        "        self.a, self.b, self.f = nn.BatchNorm1d(64), nn.BatchNorm1d(64), nn.Linear(64, n)\n"
        "        self.b.running_mean = self.a.running_mean\n"
        "        self.register_buffer('seen', self.a.running_mean.clone(), persistent=False)\n"
        "        self.a.eval()\n"
        "    def forward(self, x):\n"
        "        self.seen.mul_(0.5).add_(x.flatten(1).detach().mean(0))\n"
        "        return self.f(self.b(self.a(x.flatten(1))) + self.seen)\n"
        "def make(num_classes):\n"
        "    return Mine(num_classes)\n"
    )
    words = (*TINY[:-1], "model=custom", f"model.path={tmp_path / 'mine.py'}:make", "trainer.max_epochs=3")
    whole = Done(tmp_path / "whole", *words, "checkpoint.keep=9")
    state = load(whole.folder)["model"]
    assert state["a.num_batches_tracked"] == 0
    assert state["b.num_batches_tracked"] == 30
    assert torch.equal(state["a.running_mean"], state["b.running_mean"])
    broken = Done(tmp_path / "broken", *words, "checkpoint.keep=9")
    forget_after(broken.folder, "update-000020")
    Done(tmp_path / "broken", *words, "checkpoint.keep=9", "resume=auto")
    assert [r["loss"] for r in broken.steps] == [r["loss"] for r in whole.steps]


def test_a_model_that_changes_its_input_in_place_sees_each_batch_once(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(
        "from torch import nn\n"
        "class Greedy(nn.Module):\n"
        "    def __init__(self, n):\n"
        "        super().__init__()\n"
        "        self.f, self.sums = nn.Linear(64, n), []\n"
        "    def forward(self, x):\n"
        "        print('SUM', float(x.abs().sum()))\n"
        "        return self.f(x.mul_(0.5).flatten(1))\n"
        "def make(num_classes):\n"
        "    return Greedy(num_classes)\n"
    )
    import contextlib
    import io

    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        words = ("model=custom", f"model.path={tmp_path / 'greedy.py'}:make", "trainer.max_steps=1")
        Done(tmp_path / "r", *TINY[:-1], *words, "trainer.threads=1")
    sums = [line for line in told.getvalue().splitlines() if line.startswith("SUM")]
    assert sums[0] == sums[1]


def test_a_mistake_in_the_users_forward_is_told_with_its_line(tmp_path: Path) -> None:
    from mpt.errors import ModelError

    (tmp_path / "wrong.py").write_text(
        "from torch import nn\n"
        "class Wrong(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return {}['logits']\n"
        "def make(num_classes):\n"
        "    return Wrong(64, num_classes)\n"
    )
    with pytest.raises(ModelError, match=r"KeyError: 'logits'(.|\n)*wrong.py:4"):
        Done(tmp_path / "r", *TINY[:-1], "model=custom", f"model.path={tmp_path / 'wrong.py'}:make")
    assert not (tmp_path / "r").exists()


def test_a_disk_too_small_for_the_checkpoints_is_refused_before_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    small = type(usage)(usage.total, usage.used, 300 << 20)  # above the minimum of any run
    monkeypatch.setattr(shutil, "disk_usage", lambda path: small)
    with pytest.raises(CheckpointError, match=r"checkpoint\.keep"):
        Done(tmp_path / "r", "device=cpu", "model.width=512", "checkpoint.keep=20", "trainer.max_steps=1")
    assert not (tmp_path / "r").exists()
