"""Weights that are parts of larger tensors, as pruning leaves them, train as any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.e2e._run import Done


def build(cut: str) -> nn.Module:
    """Two layers; of the first a larger one's columns, rows or a single number were kept."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    whole = nn.Linear(128, 32).weight.detach()
    parts = {"columns": whole[:16, :64], "every other": whole[::2, ::2], "one": whole[:1, :1].expand(16, 64)}
    weight = parts[cut.removeprefix("own ")]
    model[1].weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format) if "own" in cut else weight)
    return model


WORDS = ("device=cpu", "model=custom", "model.path=tests.e2e.test_cut_weights:build", "data.limit=64")


@pytest.mark.parametrize("words", [["precision=fp32"], ["precision=bf16_split"], ["optimizer=sgd"]], ids=str)
@pytest.mark.parametrize("cut", ["columns", "every other", "one"])
def test_a_weight_that_is_a_part_of_another_tensor_trains_as_one_of_its_own(
    cut: str, words: list[str], tmp_path: Path
) -> None:
    more = ("data.batch_size=16", "trainer.max_steps=4", "trainer.eval_every=0", *words)
    part = Done(tmp_path / "a", *WORDS, *more, f"model.kwargs={{cut: {cut}}}")
    own = Done(tmp_path / "b", *WORDS, *more, f"model.kwargs={{cut: own {cut}}}")
    assert [step["loss"] for step in part.steps] == [step["loss"] for step in own.steps]
    assert part.steps[-1]["grad_norm"] == own.steps[-1]["grad_norm"]
