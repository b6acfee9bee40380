"""A run that goes wrong returns to a checkpoint, passes over the batches at fault, and goes on."""

from __future__ import annotations

import math
import os
import shutil
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from mpt.checkpoint import load
from tests.e2e._run import Done
from tests.e2e.test_inject import inject

RUN = (
    *("device=cpu", "data.limit=320", "data.batch_size=16", "model=mlp", "model.width=32", "optimizer=sgd"),
    *("optimizer.lr=0.1", "trainer.max_steps=80", "trainer.eval_every=0", "trainer.log_every=5", "checkpoint.every=10"),
    *("guard.spike=rollback", "guard.spike_score=5", "guard.spike_window=20", "schedule=constant"),
)
"""Its loss falls from 2.3 to under 1 in 80 steps."""
SPIKE = inject(45, "spike", "5", factor=100)
"""The update of step 45 throws the head's weights far away: the loss of step 46 shows it."""


LOW: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "fp16": ("scaling.init_scale=256",),
    "fp16_master": ("scaling.init_scale=256",),
}
"""Scales at which a hundredfold gradient is held: at 2^16 the step would be skipped."""


def updates(run: Done) -> list[int]:
    return [row["update"] for row in run.steps]


def tensors(path: Path) -> dict[str, Any]:
    state = load(path)
    return {key: state[key] for key in ("model", "optimizer", "scaler", "rng", "buffers", "policy")}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def untimed(run: Done) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.endswith("_s")} for row in run.steps]


@pytest.mark.parametrize("precision", ["fp32", "fp16_master"])
def test_a_run_recovers_from_a_spike_and_reaches_the_same_loss_region(precision: str, tmp_path: Path) -> None:
    words = (*RUN, f"precision={precision}", *LOW[precision])
    sound = Done(tmp_path / "sound", *words)
    lost = Done(tmp_path / "lost", *words, SPIKE, "guard.spike=off")
    saved = Done(tmp_path / "saved", *words, SPIKE)
    (event,) = saved.events("rollback")
    assert (event["guard"], event["fault_step"], event["step"]) == ("spike", 46, 50)
    assert event["batches_skipped"] == [event["to_step"] + 1, 50]
    assert event["to_step"] <= 46 - 10
    (alarm,) = saved.events("guard")
    assert (alarm["guard"], alarm["action"], alarm["step"]) == ("spike", "rollback", 46)
    assert saved.summary["rollbacks"] == [
        {k: v for k, v in event.items() if k not in ("kind", "time", "reason")},
    ]
    assert saved.summary["status"] == "done"
    final = {run: sum(row["loss"] for row in run.steps[-10:]) / 10 for run in (sound, lost, saved)}
    assert final[saved] < final[sound] + 0.35
    assert final[lost] > final[saved] + 0.35


def test_steps_go_on_counting_attempts_while_the_update_goes_back(tmp_path: Path) -> None:
    run = Done(tmp_path / "run", *RUN, "precision=fp32", SPIKE, "schedule=exponential", "schedule.gamma=0.99")
    (event,) = run.events("rollback")
    assert [row["step"] for row in run.steps] == list(range(1, 81))
    assert updates(run) == [*range(1, 51), *range(event["to_update"] + 1, event["to_update"] + 31)]
    for row in run.steps:  # the rate follows the update that the step begins from
        assert row["lr"] == pytest.approx(0.1 * 0.99 ** (row["update"] - 1), rel=1e-6)
    summary = run.summary
    assert (summary["steps"], summary["skipped"], summary["updates"]) == (80, 0, event["to_update"] + 30)
    assert event["undone"] == 50 - event["to_update"]
    left = {int(p.name.removeprefix("update-")) for p in (tmp_path / "run" / "checkpoints").glob("update-*")}
    assert max(left) == event["to_update"] + 30


def test_what_comes_after_a_rollback_is_what_the_checkpoint_and_the_later_batches_make(tmp_path: Path) -> None:
    run = Done(tmp_path / "run", *RUN, "precision=fp32", SPIKE, "checkpoint.keep=9")
    to = run.events("rollback")[0]["to_step"]
    plain = Done(tmp_path / "plain", *RUN, "precision=fp32", f"trainer.max_steps={to}", "checkpoint.keep=9")
    assert untimed(plain)[:to] == untimed(run)[:to]
    weights = load(tmp_path / "run" / "checkpoints" / f"update-{to:06d}")["model"]
    assert same(weights, load(tmp_path / "plain" / "checkpoints" / f"update-{to:06d}")["model"])
    assert run.steps[50]["loss"] < 3 < max(row["loss"] for row in run.steps[45:50])


@pytest.mark.parametrize(("precision", "stop"), [("fp32", 46), ("fp32", 50), ("fp16", 48), ("fp16", 65)])
def test_a_run_resumed_around_a_rollback_is_bit_equal_to_the_uninterrupted_one(
    precision: str, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*RUN, f"precision={precision}", SPIKE, "model.dropout=0.1", "guard.rollback_lr=0.5", *LOW[precision])
    words += ("guard.rollback_scale=0.25", "guard.rollback_steps=16", "trainer.ema_decay=0.9")
    words += ("guard.rollback_precision=fp32",)
    whole = Done(tmp_path / "whole", *words)
    (event,) = whole.events("rollback")
    assert event["float32_until_step"] == 66
    seen = []

    def interrupted(run: Any, attempt: Any) -> None:
        seen.append(attempt)
        if len(seen) == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("mpt.train.attempts.look", interrupted)
    Done(tmp_path / "broken", *words, code=143)
    resumed = Done(tmp_path / "broken", *words, "resume=auto")
    assert len(seen) == 80
    assert untimed(resumed) == untimed(whole)
    last = sorted((tmp_path / "whole" / "checkpoints").glob("update-*"))[-1].name
    assert same(*(tensors(tmp_path / run / "checkpoints" / last) for run in ("whole", "broken")))


def test_rate_and_scale_are_lowered_for_a_while_where_asked(tmp_path: Path) -> None:
    words = ("guard.rollback_lr=0.5", "guard.rollback_steps=12", "guard.rollback_scale=0.25")
    run = Done(tmp_path / "run", *RUN, "precision=fp16", SPIKE, *LOW["fp16"], *words)
    (event,) = run.events("rollback")
    before = run.steps[event["to_step"] - 1]["scale"]
    assert [row["lr"] for row in run.steps[50:]] == [0.05] * 12 + [0.1] * 18
    assert event["scale"] == run.steps[50]["scale"] == before / 4
    moves = [(a["scale"], b["scale"]) for a, b in pairwise(run.steps) if b["step"] != 51]
    told = run.summary["scaling"]
    assert told["backoffs"] == sum(a > b for a, b in moves), "the return is no back-off of the strategy"
    assert told["growths"] == sum(a < b for a, b in moves)
    assert (event["lr_factor"], event["lr_until_update"]) == (0.5, event["to_update"] + 12)


def test_to_skip_a_spike_changes_neither_rate_nor_scale(tmp_path: Path) -> None:
    words = ("guard.spike=skip", "guard.rollback_lr=0.5", "guard.rollback_scale=0.25")
    run = Done(tmp_path / "run", *RUN, "precision=fp32", SPIKE, *words)
    (event,) = run.events("rollback")
    assert "scale" not in event
    assert {row["lr"] for row in run.steps} == {0.1}


def test_a_run_that_goes_wrong_again_and_again_gives_up_with_exit_3_and_intact_checkpoints(tmp_path: Path) -> None:
    faults = ",".join(f"{{step: {s}, module: 5, kind: spike, factor: 100}}" for s in (42, 56, 70))
    words = (*RUN, "precision=fp32", f"debug.inject=[{faults}]", "guard.rollback_attempts=2", "guard.rollback_margin=2")
    run = Done(tmp_path / "run", *words, code=3)
    assert [event["attempt"] for event in run.events("rollback")] == [1, 2]
    assert (tmp_path / "run" / "DIVERGED").is_file()
    assert "Already rolled back 2 times" in run.summary["reason"]
    for checkpoint in (tmp_path / "run" / "checkpoints").glob("update-*"):
        assert all(t.isfinite().all() for t in load(checkpoint)["model"].values())


def test_skips_in_a_row_may_roll_back_too(tmp_path: Path) -> None:
    fault = inject(41, "nan", "3", steps=6)
    words = (*RUN, "guard.skips=rollback", "scaling.max_consecutive_skips=4")
    run = Done(tmp_path / "run", *words, "precision=bf16", fault)
    (event,) = run.events("rollback")
    assert (event["guard"], event["fault_step"], event["step"]) == ("skips", 41, 45)
    assert [row["applied"] for row in run.steps[40:48]] == [False] * 6 + [True] * 2
    assert run.summary["skipped"] == 6


def test_deepspeeds_scale_ends_the_run_at_its_floor(tmp_path: Path) -> None:
    words = (*RUN[:-2], "precision=fp16", "scaling=deepspeed", "scaling.init_scale=4", inject(10, "inf", "3", steps=9))
    run = Done(tmp_path / "run", *words, code=3)
    assert "floor of the loss scale, 1, where scaling=deepspeed ends a run" in run.summary["reason"]
    # 10: hysteresis; 11: 4 → 2; 12: 2 → 1; 13 would go below
    assert run.events("guard")[0]["step"] == 13
    Done(tmp_path / "on", *words, "scaling.raise_at_floor=false")


def test_a_static_scale_that_overflows_on_every_step_ends_with_exit_3_and_a_hint(tmp_path: Path) -> None:
    run = Done(tmp_path / "run", *RUN, "precision=fp16", "scaling=static", "scaling.init_scale=1e9", code=3)
    assert "scaling=dynamic, a smaller scaling.init_scale" in run.summary["reason"]
    assert math.isfinite(run.steps[0]["loss"])


@pytest.fixture(autouse=True)
def _tidy(tmp_path: Path) -> Any:
    yield
    shutil.rmtree(tmp_path)
