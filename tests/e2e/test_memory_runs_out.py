"""Memory that runs out, played on a CPU: micro-batches are computed in parts, the batch of an update stays."""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path

import pytest
import torch

from mpt.errors import ModelError
from mpt.train.parts import cut, smaller
from mpt.types import Batch
from tests.e2e._run import TINY, Done
from tests.e2e.test_resume import assert_equal_runs

HUNGRY = (
    "import torch\n"
    "from torch import nn\n"
    "class Hungry(nn.Sequential):\n"
    "    calls = 0\n"
    "    def forward(self, x):\n"
    "        if self.training:\n"
    "            Hungry.calls += 1\n"
    "        if self.training and Hungry.calls >= {since} and len(x) > {most}:\n"
    "            raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')\n"
    "        return super().forward(x.flatten(1))\n"
    "def make(num_classes):\n"
    "    return Hungry(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))\n"
)
FRESH = count()
WORDS = (*TINY[:-1], "model=custom", "trainer.accumulate=2", "trainer.max_steps=12", "trainer.log_every=3")


def hungry(folder: Path, *, since: int, most: int) -> str:
    file = folder / f"hungry_{next(FRESH)}.py"  # a module of its own, which counts its calls from 0
    file.write_text(HUNGRY.format(since=since, most=most))
    return f"model.path={file}:make"


def test_a_batch_is_cut_in_order_without_a_copy() -> None:
    batch = Batch(torch.arange(10).float(), torch.arange(10))
    parts = list(cut(batch, 4))
    assert [len(part.targets) for part in parts] == [3, 3, 2, 2]
    assert torch.cat([part.inputs for part in parts]).equal(batch.inputs)
    assert parts[0].inputs.data_ptr() == batch.inputs.data_ptr()
    assert (smaller(10, 1), smaller(10, 8), smaller(10, 10)) == (2, 10, None)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_memory_that_runs_out_in_a_step_halves_the_micro_batch_and_keeps_the_global_one(
    precision: str, tmp_path: Path
) -> None:
    words = (*WORDS, f"precision={precision}")
    whole = Done(tmp_path / "whole", *words, hungry(tmp_path, since=0, most=16))
    # the dry pass, four whole steps of two micro-batches, then half of the memory is gone
    split = Done(tmp_path / "split", *words, hungry(tmp_path, since=10, most=4))
    told = [(e["step"], e["micro_batch"], e["parts"]) for e in split.events("out_of_memory")]
    assert told == [(5, 16, 2), (5, 16, 4)]
    assert split.summary["micro_batch_parts"] == 4
    assert [r["samples"] for r in split.steps] == [r["samples"] for r in whole.steps] == [32] * 12
    assert [r["loss"] for r in split.steps][:4] == [r["loss"] for r in whole.steps][:4]
    for a, b in zip(split.steps, whole.steps, strict=True):  # the same sums in another order
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-5 if precision == "fp32" else 2.0**-8)


def test_a_run_whose_first_pass_does_not_fit_starts_in_parts_and_resumes_in_them(tmp_path: Path) -> None:
    path = hungry(tmp_path, since=0, most=8)
    whole = Done(tmp_path / "whole", *WORDS, path)
    assert whole.summary["micro_batch_parts"] == 2
    (started,) = whole.events("started")
    assert any("computed in 2 parts of 8" in note for note in started["notes"])
    Done(tmp_path / "broken", *WORDS, path, "trainer.max_time_s=0.001", "checkpoint.every=1")
    Done(tmp_path / "broken", *WORDS, path, "resume=auto", "checkpoint.every=1")
    assert_equal_runs(tmp_path / "broken", whole.folder)


def test_a_single_sample_that_does_not_fit_is_refused_with_nothing_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="micro-batch of 1"):
        Done(tmp_path / "r", *WORDS, hungry(tmp_path, since=0, most=0))
    assert not (tmp_path / "r").exists()


def test_memory_that_runs_out_where_a_sample_is_alone_ends_the_run_by_name(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *WORDS, hungry(tmp_path, since=6, most=0), "checkpoint.every=1", code=5)
    assert "out of memory" in run.summary["reason"]
    assert list((run.folder / "checkpoints").glob("update-*/COMMITTED"))


def test_memory_that_runs_out_in_the_update_itself_is_no_reason_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights may be half updated."""
    from mpt.train.step import Stepper

    def fails(self: Stepper, *args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Stepper, "_after", fails)
    run = Done(tmp_path / "r", *WORDS, hungry(tmp_path, since=0, most=99), code=5)
    assert run.events("out_of_memory") == []
    assert "out of memory" in run.summary["reason"]
