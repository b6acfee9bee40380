"""Gradients that are 0 by the model are no underflow; what is lost is told with what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e._run import TINY, Done

BAG = (
    "import torch\n"
    "from torch import nn\n"
    "class Bag(nn.Module):\n"
    "    def __init__(self, n):\n"
    "        super().__init__()\n"
    "        self.e, self.h = nn.Embedding(4000, 8), nn.Linear(8, n)\n"
    "    def forward(self, x):\n"
    "        rows = self.e((x.flatten(1).abs() * 15).long().clamp(max=3999))\n"
    "        return self.h(torch.dropout(rows, 0.1, self.training).mean(1))\n"
    "def make(num_classes):\n"
    "    return Bag(num_classes)\n"
)
SHORT = ("trainer.max_steps=6", "trainer.log_every=2")


def told(run: Done, capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def share(run: Done) -> float | None:
    value: float | None = run.summary["losses_of_precision"]["underflow_share"]
    return value


def test_a12_rows_of_an_embedding_that_no_sample_has_are_no_underflow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bag.py").write_text(BAG)
    words = (*TINY[:-1], *SHORT, "model=custom", f"model.path={tmp_path / 'bag.py'}:make", "precision=fp16")
    run = Done(tmp_path / "a", *words)
    assert run.summary["losses_of_precision"]["zero_grad_share"] > 0.9
    assert share(run) == pytest.approx(0, abs=0.05)
    assert "became 0" not in told(run, capsys)
    lost = Done(tmp_path / "b", *words, "task.loss_weight=1e-12")
    assert share(lost) == 1
    assert "100.0% of the gradients became 0 in float16: too small for it. Use a larger scaling.init_scale" in told(
        lost, capsys
    )


@pytest.mark.parametrize(("scaling", "way"), [("none", "scaling=dynamic"), ("dynamic", "a larger scaling.init_scale")])
def test_a12_gradients_too_small_for_the_scale_are_told_with_what_helps(
    scaling: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Done(tmp_path / "r", *TINY, *SHORT, "precision=fp16", f"scaling={scaling}", "task.loss_weight=1e-14")
    assert (share(run) or 0) > 0.9
    assert f"too small for it. Use {way};" in told(run, capsys)


def test_no_look_at_underflow_is_made_where_few_are_0(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *TINY, *SHORT, "precision=fp16", "model.dropout=0.3")
    assert share(run) is None
    assert run.summary["losses_of_precision"]["zero_grad_share"] < 0.5


@pytest.mark.parametrize(
    ("precision", "way"),
    [
        ("bf16_true", "precision=bf16_split, precision.update_rounding=stochastic or a larger optimizer.lr"),
        ("fp16_true", "precision=fp16_master or a larger optimizer.lr"),
    ],
)
def test_c5_a_rate_below_what_half_weights_resolve_is_told_at_the_end(
    precision: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY, *SHORT, "optimizer=sgd", "optimizer.lr=1e-6")
    run = Done(tmp_path / "a", *words, f"precision={precision}")
    assert run.summary["losses_of_precision"]["lost_update_share"] > 0.9
    assert f"Use {way}" in told(run, capsys)
    run = Done(tmp_path / "b", *TINY, *SHORT, "precision=bf16_true", "optimizer=sgd", "optimizer.lr=0.5")
    assert "of the updates left" not in told(run, capsys)
