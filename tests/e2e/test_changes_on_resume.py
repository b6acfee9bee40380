"""Going on with another precision, batch, length: only by a flag, with what is reset told and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpt.checkpoint import load
from mpt.errors import CheckpointError
from tests.e2e._run import TINY, Done

ALLOWED = ("resume=auto", "checkpoint.allow_changes=true")
HALF = ("trainer.max_steps=20", "checkpoint.every=5", "trainer.log_every=5", "model.dropout=0")


def halfway(folder: Path, *words: str) -> Done:
    """A run that stopped after step 5 of 20."""
    run = Done(folder, *TINY, *HALF, *words, "trainer.max_time_s=0.001")
    assert run.summary["steps"] == 5
    return run


def changed(run: Done) -> list[str]:
    told: list[str] = run.events("resumed")[-1]["changed"]
    return told


@pytest.mark.parametrize(
    ("before", "after", "reset"),
    [
        ("fp32", "fp16", "the loss scale starts anew: none became dynamic"),
        ("fp16", "fp32", "the loss scale starts anew: dynamic became none"),
        ("fp16_master", "bf16", "the loss scale starts anew: dynamic became none"),
        ("bf16", "fp8_delayed", "delayed scales start anew"),
        ("fp32", "bf16_true", "precision.param: the checkpoint was made with `float32`, this run has `bfloat16`"),
    ],
)
def test_f3_r15_another_precision_goes_on_by_a_flag_and_tells_what_is_reset(
    before: str, after: str, reset: str, tmp_path: Path
) -> None:
    run = halfway(tmp_path / "r", f"precision={before}")
    weights = load(run.folder)
    words = (*TINY, *HALF, f"precision={after}", "model.width=8")
    with pytest.raises(CheckpointError, match=rf"made with `{before}`, this run has `{after}`(.|\n)*allow_changes"):
        Done(tmp_path / "r", *words, "resume=auto")
    on = Done(tmp_path / "r", *words, *ALLOWED)
    assert any(reset in line for line in changed(on)), changed(on)
    assert on.summary["precision"]["requested"] == after
    assert on.summary["resumed_at"] == [5]
    assert [row["step"] for row in on.steps] == list(range(1, 21))
    # the same weights: the next loss differs from that of the unbroken run by the rounding of the format alone
    unbroken = Done(tmp_path / "whole", *TINY, *HALF, f"precision={before}")
    assert on.steps[5]["loss"] == pytest.approx(unbroken.steps[5]["loss"], rel=0.1)
    assert weights["history"]["step"] == 5


def test_values_that_differ_are_told_as_they_are_typed(tmp_path: Path) -> None:
    halfway(tmp_path / "r", "trainer.max_epochs=4")
    with pytest.raises(CheckpointError, match=r"trainer.clip_norm: .* made with `null`, this run has `1`"):
        Done(tmp_path / "r", *TINY, *HALF, "trainer.max_epochs=4", "trainer.clip_norm=1", "resume=auto")
    shorter = (*TINY, "checkpoint.every=5", "model.dropout=0", "trainer.max_steps=null", "trainer.max_epochs=0.01")
    with pytest.raises(CheckpointError, match=r"trainer.max_epochs: this run has 1 step,"):
        Done(tmp_path / "r", *shorter, *ALLOWED)


def test_f12_r15_a_longer_cosine_is_bent_anew_and_says_so(tmp_path: Path) -> None:
    halfway(tmp_path / "r")
    on = Done(tmp_path / "r", *TINY, *HALF[1:], "trainer.max_steps=40", *ALLOWED)
    (told,) = [line for line in changed(on) if "bent anew" in line]
    whole = Done(tmp_path / "whole", *TINY, *HALF)
    assert f"is {on.steps[5]['lr']:.4g}, it would have been {whole.steps[5]['lr']:.4g}" in told
    assert on.steps[5]["lr"] > whole.steps[5]["lr"]


def test_a_longer_constant_schedule_has_nothing_to_bend(tmp_path: Path) -> None:
    words = (*TINY, *HALF[1:], "schedule=constant")
    halfway(tmp_path / "r", "schedule=constant")
    on = Done(tmp_path / "r", *words, "trainer.max_steps=40", *ALLOWED)
    assert not [line for line in changed(on) if "bent anew" in line]


@pytest.mark.parametrize(
    ("word", "told"), [("data.batch_size=32", "1 epoch now, it was 0.5"), ("trainer.accumulate=2", "1 epoch")]
)
def test_r15_another_batch_says_which_samples_follow(word: str, told: str, tmp_path: Path) -> None:
    halfway(tmp_path / "r")
    on = Done(tmp_path / "r", *TINY, *HALF, word, *ALLOWED)
    assert any(told in line for line in changed(on)), changed(on)
    assert [row["samples"] for row in on.steps] == [16] * 5 + [32] * 15


def test_f13_r15_a_warm_start_is_another_verb_and_begins_at_step_0(tmp_path: Path) -> None:
    base = halfway(tmp_path / "base")
    warm = Done(tmp_path / "warm", *TINY, *HALF, "precision=fp16", f"init_from={base.folder}")
    assert (warm.steps[0]["step"], warm.steps[0]["update"]) == (1, 1)
    (started,) = warm.events("started")
    assert any("all else starts anew" in note for note in started["notes"])
    fresh = Done(tmp_path / "fresh", *TINY, *HALF, "precision=fp16")
    assert warm.steps[0]["loss"] < fresh.steps[0]["loss"]


def test_counters_of_a_newer_version_are_refused_by_name(tmp_path: Path) -> None:
    from mpt.checkpoint import CheckpointStore

    run = halfway(tmp_path / "r")
    state = load(run.folder)
    state["progress"]["rolled_forward"] = 3
    CheckpointStore(run.folder / "checkpoints", 2).save(state, step=6, update=6)
    with pytest.raises(CheckpointError, match="newer version, which counts rolled_forward"):
        Done(tmp_path / "r", *TINY, *HALF, "resume=auto")


def test_changes_are_told_by_the_keys_that_are_typed_and_without_what_follows_from_a_choice(tmp_path: Path) -> None:
    words = (*TINY[:-1], "trainer.max_steps=1")
    first = Done(tmp_path / "a", *words, "precision=fp16", "model=mlp", "model.width=8").folder
    with pytest.raises(CheckpointError) as refused:
        Done(tmp_path / "b", *words, "precision=bf16", "model=small_cnn", f"resume={first}")
    told = {problem.where: problem.what for problem in refused.value.problems}
    assert told["model"] == "the checkpoint was made with `mlp`, this run has `small_cnn`"
    assert told["precision"] == "the checkpoint was made with `fp16`, this run has `bf16`"
    assert told["scaling"] == "the checkpoint was made with `dynamic`, this run has `none`"
    assert told["model.width"] == "the checkpoint was made with `8`, this run has `32`"
    assert told.keys() == {
        *("model", "model.width", "model.dropout", "precision", "precision.compute", "precision.scaling", "scaling")
    }
    assert str(refused.value).count("hint:") == 1
