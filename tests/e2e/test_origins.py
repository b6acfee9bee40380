"""A run that can't go on says which op of whose code made inf or NaN, and what would help."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e._run import TINY, Done

NET = (
    "import torch\n"
    "from torch import nn\n"
    "class Net(nn.Module):\n"
    "    def __init__(self, n):\n"
    "        super().__init__()\n"
    "        self.a, self.b = nn.Linear(64, 32), nn.Linear(32, n)\n"
    "    def forward(self, x):\n"
    "        h = self.a(x.flatten(1))\n"
    "        h = {body}\n"
    "        return self.b(h)\n"
    "def make(num_classes):\n"
    "    return Net(num_classes)\n"
)
CUSTOM = (*TINY[:-1], "model=custom", "trainer.max_steps=45", "trainer.log_every=5")


def run(folder: Path, body: str, *words: str, code: int = 3) -> Done:
    (folder / "net.py").write_text(NET.format(body=body))
    return Done(folder / "r", *CUSTOM, f"model.path={folder / 'net.py'}:make", *words, code=code)


@pytest.mark.parametrize(
    ("body", "precision", "op", "helps"),
    [
        ("(h * 300) * (h * 300) - h * h * 9e4", "fp16", "mul", "float16 ends at 65504"),
        ("h / (h.relu() + 1e-8)", "fp16", "div", "1e-8 is 0 in it"),
        ("h * h.masked_fill(h < 1e9, float('-inf')).softmax(-1)", "bf16", "softmax", "leave one entry"),
        ("torch.logit(torch.sigmoid(h * 99))", "bf16", "logit", "clamp it"),
    ],
    ids=["overflow", "eps", "mask", "edge"],
)
def test_r8_a_non_finite_forward_is_led_back_to_a_line_of_the_users_code(
    body: str, precision: str, op: str, helps: str, tmp_path: Path
) -> None:
    done = run(tmp_path, body, f"precision={precision}")
    where = done.events("nonfinite_forward")[0]
    assert where["module"] == "the model"  # not `b`, which was given what its forward had made
    assert where["origin"]["op"] == op
    assert where["origin"]["line"] == "net.py:9"
    assert where["inputs_finite"] is True
    reason = done.summary["reason"]
    assert f"`{op}` in the model's own forward (net.py:9)" in reason
    assert helps in reason


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_r5_a_gradient_that_no_scale_makes_finite_is_led_back_to_its_op(precision: str, tmp_path: Path) -> None:
    done = run(tmp_path, "torch.where(h > 0, h.sqrt(), torch.zeros_like(h))", f"precision={precision}")
    assert {skip["cause"] for skip in done.events("skip")} == {"gradient_overflow"}
    (where,) = done.events("nonfinite_backward")
    assert (where["origin"]["op"], where["origin"]["line"]) == ("sqrt", "net.py:9")
    assert "without any scaling, `sqrt` in the model's own forward (net.py:9) made nan" in done.summary["reason"]


def test_a4_an_overflow_that_a_smaller_scale_would_cure_is_not_led_back_to_an_op(tmp_path: Path) -> None:
    done = run(tmp_path, "h", "precision=fp16", "scaling=static", "scaling.init_scale=1e30")
    assert done.events("nonfinite_backward") == []
    assert done.summary["reason"].endswith("Use scaling=dynamic, a smaller scaling.init_scale or precision=bf16")


def test_looking_for_an_origin_alters_no_bit_of_the_run(tmp_path: Path) -> None:
    body = "h / (torch.rand(1) * 3).floor() if self.training else h"  # by 0 in a third of the steps
    words = ("trainer.max_steps=12", "precision=bf16", "model.kwargs={}", "trainer.ema_decay=0.9")
    once = run(tmp_path, body, *words, code=0)
    each = Done(tmp_path / "each", *CUSTOM, f"model.path={tmp_path / 'net.py'}:make", *words, "debug.anomaly=true")
    assert len(each.events("nonfinite_forward")) == once.summary["skipped"] > 1
    assert [row["loss"] for row in once.steps] == [row["loss"] for row in each.steps]
    assert once.summary["final"] == each.summary["final"]


@pytest.mark.parametrize(
    ("body", "precision", "helps"),
    [
        ("h - self.__dict__.setdefault('kept', [h.mean(0)])[0]", "bf16", "keep `.detach()` of it"),
        ("h.masked_fill(h > 0, -1e9 if STEPS.append(0) or len(STEPS) > 4 else 0)", "fp16", "torch.finfo(x.dtype).min"),
    ],
    ids=["kept_graph", "mask"],
)
def test_a_fault_of_the_model_after_the_dry_pass_is_no_bug_of_mpts(
    body: str, precision: str, helps: str, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text("STEPS = []\n" + NET.format(body=body))
    done = Done(tmp_path / "r", *CUSTOM, f"model.path={tmp_path / 'net.py'}:make", f"precision={precision}", code=5)
    assert helps in done.summary["reason"]
    assert (done.folder / "FAILED").exists()


def test_h7_r8_a_non_finite_evaluation_names_its_samples(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        "import torch\n"
        "def make():\n"
        "    g = torch.Generator().manual_seed(0)\n"
        "    x, y = torch.randn(200, 1, 8, 8, generator=g), torch.randint(10, (200,), generator=g)\n"
        "    x[177] = float('nan')\n"
        "    return {'train': (x[:100], y[:100]), 'eval': (x[100:], y[100:])}\n"
    )
    words = ("precision=bf16", "data=custom", f"data.path={tmp_path / 'data.py'}:make", "data.batch_size=10")
    once = ("model.width=8", "device=cpu", "trainer.max_epochs=2")
    run = Done(tmp_path / "r", *words, *once, code=3)
    (where,) = run.events("nonfinite_evaluation")
    assert (where["samples"], where["inputs_finite"]) == ([77], False)
    assert "evaluation samples 77, counted from 0: the batch itself has inf or nan in it" in run.summary["reason"]


def test_an_op_that_breaks_in_evaluation_only_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "h if self.training else h / (h - h)", "precision=bf16", "trainer.max_steps=5")
    (where,) = done.events("nonfinite_evaluation")
    assert (where["origin"]["op"], where["origin"]["line"], where["inputs_finite"]) == ("div", "net.py:9", True)
    assert "`div` in the model's own forward (net.py:9) made inf of a division by 0" in done.summary["reason"]
