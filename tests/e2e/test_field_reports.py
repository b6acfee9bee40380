"""What goes wrong for people with mixed precision, and does not here; names carry the report's id."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mpt.errors import ConfigError, ModelError
from tests.e2e._run import TINY, Done

FP16 = ("precision=fp16", *TINY)


def test_a1_a2_the_rate_is_base_times_gamma_to_the_applied_updates(tmp_path: Path) -> None:
    words = ("scaling.init_scale=16777216", "trainer.max_steps=20", "schedule=exponential", "schedule.gamma=0.9")
    run = Done(tmp_path / "r", *FP16, *words, "scaling.max_scale=1e30", "task.loss_weight=100")
    applied = 0
    for row in run.steps:
        assert row["lr"] == pytest.approx(1e-3 * 0.9**applied, rel=1e-12)
        applied += row["applied"]
        assert row["update"] == applied
    assert 0 < run.summary["skipped"] == 20 - applied
    assert len(run.events("skip")) == run.summary["skipped"]
    assert {e["cause"] for e in run.events("skip")} == {"gradient_overflow"}
    for skip in run.events("skip"):
        assert 0 < skip["nonfinite_tensors"] <= skip["tensors"]
        assert skip["module"] == "14"  # the head: the loss's own gradient overflowed


def test_r5_the_layer_whose_gradient_overflowed_is_named(tmp_path: Path) -> None:
    (tmp_path / "steep.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Steep(nn.Module):\n"
        "    def forward(self, x):\n"
        "        if x.requires_grad and torch.is_grad_enabled():\n"
        "            x.register_hook(lambda g: g * float('inf'))\n"
        "        return x\n"
        "def make(num_classes):\n"
        "    layers = [nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 16), Steep()]\n"
        "    return nn.Sequential(*layers, nn.Linear(16, num_classes))\n"
    )
    words = (*TINY[:-1], "model=custom", f"model.path={tmp_path / 'steep.py'}:make", "trainer.max_steps=2")
    run = Done(tmp_path / "r", *words, "precision=bf16", code=3)
    for skip in run.events("skip"):
        assert (skip["nonfinite_tensors"], skip["tensors"]) == (4, 6)
        assert skip["module"] == "3"
        assert 0 < skip["largest_finite_norm"] < 10
    assert run.summary["skipped"] == 2


def test_a3_a_forward_that_is_non_finite_stops_the_run_and_is_told_from_an_overflow(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *FP16, "data.std=[1e-30]", "trainer.max_epochs=50", "trainer.log_every=5", code=3)
    summary = run.summary
    assert summary["status"] == "diverged"
    assert summary["steps"] < 60
    assert "no loss scale can cure" in summary["reason"]
    assert (run.folder / "DIVERGED").exists()
    assert all(row["loss"] is None and row["nonfinite"]["loss"] in ("nan", "inf") for row in run.steps)


def test_a4_a17_overflow_on_every_step_ends_with_exit_3_and_a_hint(tmp_path: Path) -> None:
    words = ("scaling=static", "scaling.init_scale=1e30", "trainer.max_epochs=50", "trainer.log_every=5")
    run = Done(tmp_path / "r", *FP16, *words, code=3)
    assert "gradients overflow at a loss scale of 1e+30" in run.summary["reason"]
    assert "precision=bf16" in run.summary["reason"]
    assert run.summary["updates"] == 0


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a6_a_model_without_trainable_weights_is_refused(precision: str, tmp_path: Path) -> None:
    (tmp_path / "frozen.py").write_text(
        "from torch import nn\n"
        "def make(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)).requires_grad_(False)\n"
    )
    words = ("model=custom", f"model.path={tmp_path / 'frozen.py'}:make", "device=cpu")
    with pytest.raises((ConfigError, ModelError), match="frozen"):
        Done(tmp_path / "r", f"precision={precision}", *words)
    assert not (tmp_path / "r").exists()


def test_a9_h8_logged_norms_and_losses_do_not_depend_on_the_scale(tmp_path: Path) -> None:
    words = (*FP16, "scaling=static", "trainer.clip_norm=0.1", "trainer.max_steps=6")
    low = Done(tmp_path / "a", *words, "scaling.init_scale=1024").steps
    high = Done(tmp_path / "b", *words, "scaling.init_scale=8192").steps
    for a, b in zip(low, high, strict=True):
        # a power of two changes no digit of a float16 product, only of what falls among the subnormals
        assert math.isclose(a["grad_norm"], b["grad_norm"], rel_tol=2.0**-10)
        assert math.isclose(a["loss"], b["loss"], rel_tol=2.0**-10)
        assert (a["scale"], b["scale"]) == (1024, 8192)


def test_a12_small_gradients_vanish_without_scaling_and_the_share_is_told(tmp_path: Path) -> None:
    words = (*FP16, "task.loss_weight=1e-6", "trainer.max_steps=20", "trainer.log_every=5")
    share = {}
    for scaling in ("none", "static", "dynamic"):
        run = Done(tmp_path / scaling, *words, f"scaling={scaling}")
        share[scaling] = run.summary["losses_of_precision"]["zero_grad_share"]
    assert share["none"] > 0.2 + share["dynamic"]
    assert share["static"] < share["none"]


def test_the_logged_loss_is_before_the_weight_as_the_evaluations_is(tmp_path: Path) -> None:
    words = (*TINY, "trainer.max_steps=1", "model.dropout=0")
    plain = Done(tmp_path / "a", *words).steps[0]
    weighted = Done(tmp_path / "b", *words, "task.loss_weight=0.25").steps[0]
    assert weighted["loss"] == plain["loss"]
    assert weighted["grad_norm"] == pytest.approx(plain["grad_norm"] / 4)


def test_a16_the_loss_of_the_first_step_is_the_same_for_any_scale_and_window(tmp_path: Path) -> None:
    words = (*TINY, "trainer.max_steps=1", "model.dropout=0")
    plain = Done(tmp_path / "a", "precision=fp32", *words).steps[0]["loss"]
    fp16 = Done(tmp_path / "b", "precision=fp16", *words).steps[0]["loss"]
    window = Done(tmp_path / "c", "precision=fp16", *words, "trainer.accumulate=4").steps[0]["loss"]
    assert math.isclose(plain, fp16, rel_tol=2.0**-8)
    assert math.isclose(plain, window, rel_tol=0.2)  # other samples, the same scale


def test_a21_a_poisoned_batch_in_bf16_is_skipped_counted_and_leaves_weights_finite(tmp_path: Path) -> None:
    (tmp_path / "poison.py").write_text(
        "import torch\n"
        "def make():\n"
        "    g = torch.Generator().manual_seed(0)\n"
        "    x, y = torch.randn(160, 1, 8, 8, generator=g), torch.randint(10, (160,), generator=g)\n"
        "    x[17] = float('nan')\n"
        "    return {'train': (x, y), 'eval': (x[20:60], y[20:60])}\n"
    )
    words = ("precision=bf16", "data=custom", f"data.path={tmp_path / 'poison.py'}:make", "data.batch_size=16")
    run = Done(tmp_path / "r", *words, "model.width=8", "device=cpu", "trainer.max_epochs=3")
    assert run.summary["skipped"] == 3
    assert {e["cause"] for e in run.events("skip")} == {"nonfinite_loss"}
    assert run.summary["nonfinite_losses"] == 3
    (where,) = run.events("nonfinite_forward")
    assert where["samples"] == [17]
    assert where["inputs_finite"] is False
    assert where["module"] == "0"
    assert where["output"]["nonfinite_frac"] > 0
    assert math.isfinite(run.summary["final"]["eval_loss"])


def test_c8_r8_the_module_that_goes_non_finite_is_named_with_the_range_of_its_input(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Fragile(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x / (x.detach().abs().amax() < 2)\n"
        "def make(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), Fragile(), nn.Linear(16, num_classes),\n"
        "                         Fragile())\n"
    )
    words = (*TINY[:-1], "model=custom", f"model.path={tmp_path / 'fragile.py'}:make", "optimizer.lr=0.1")
    run = Done(tmp_path / "r", *words, "debug.anomaly=true", "trainer.max_epochs=3", "trainer.log_every=1", code=3)
    located = run.events("nonfinite_forward")
    assert len(located) == run.summary["skipped"] > 1
    assert {where["module"] for where in located} == {"5"}
    assert all(where["input"]["max"] >= 2 or where["input"]["min"] <= -2 for where in located)


def test_c4_the_average_moves_in_half_precision(tmp_path: Path) -> None:
    words = (*TINY, "precision=bf16_true", "trainer.max_steps=30")
    slow = Done(tmp_path / "a", *words, "trainer.ema_decay=0.999").evals[-1]
    fast = Done(tmp_path / "b", *words, "trainer.ema_decay=0.5").evals[-1]
    assert slow["weights"] == fast["weights"] == "ema"
    assert slow["loss"] != fast["loss"]


def test_h2_h4_three_steps_make_strict_json_and_no_speed(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *TINY, "trainer.max_steps=3")
    assert run.summary["speed"]["step_p50_ms"] is None
    for file in run.folder.glob("*.json*"):
        for line in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
            json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} in a record"))


def test_h7_a_nan_metric_is_never_the_best(tmp_path: Path) -> None:
    from mpt.train.progress import Progress

    progress = Progress()
    nan = {"accuracy": float("nan"), "loss": 1.0}
    assert not progress.judge(nan, "accuracy", "max", 1, 1)
    assert progress.judge({"accuracy": 0.1, "loss": 1.0}, "accuracy", "max", 2, 2)
    assert not progress.judge(nan, "accuracy", "max", 3, 3)
    assert progress.best["step"] == 2


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("precision=bf16", "scaling=dynamic"), "scaling"),
        (("precision=fp16_true", "scaling=dynamic"), "scaling"),
        (("precision=fp16", "optimizer=lbfgs"), "optimizer"),
        (("precision=fp16", "task.loss=bce"), "task.loss"),
        (("precision=fp16", "scaling.min_scale=64", "scaling.max_scale=32"), "scaling.min_scale"),
    ],
    ids=["a11", "a10", "a13", "b1", "a17"],
)
def test_unsound_pairs_are_refused_before_anything_is_written(words: tuple[str, ...], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        Done(tmp_path / "r", *words, "device=cpu")
    assert any(p.where.startswith(key) or key in p.what for p in refused.value.problems)
    assert not (tmp_path / "r").exists()


def test_a3_h7_a_short_run_that_learned_nothing_is_no_success_and_its_nan_no_best(tmp_path: Path) -> None:
    words = (*FP16, "trainer.max_steps=20")
    scaled = Done(tmp_path / "a", *words, "scaling=static", "scaling.init_scale=65536", "task.loss_weight=1e6", code=3)
    assert scaled.summary["updates"] == 0
    broken = Done(tmp_path / "b", *words, "data.std=[1e-30]", code=3)
    assert broken.summary["status"] == "diverged"
    assert broken.summary["best"] is None
    assert not any(row["best"] for row in broken.evals)


def test_b2_an_infinite_loss_with_finite_gradients_is_skipped_and_told(tmp_path: Path) -> None:
    (tmp_path / "masked.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Masked(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        mask = torch.arange(self.out_features) == 0\n"
        "        return super().forward(x.flatten(1)).masked_fill(mask, float('-inf'))\n"
        "def make(num_classes):\n"
        "    return Masked(64, num_classes)\n"
    )
    words = (*TINY[:-1], "model=custom", f"model.path={tmp_path / 'masked.py'}:make", "trainer.max_epochs=1")
    run = Done(tmp_path / "r", *words, "precision=bf16", code=3)  # the evaluation's loss is infinite too
    told = run.events("skip")
    assert len(told) == sum(row["loss"] is None for row in run.steps) > 0
    assert run.events("nonfinite_forward")[0]["module"] in ("the model", "")


def test_a_fault_of_the_users_code_is_named_with_its_line_and_the_run_can_go_on(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "from torch import nn\n"
        "class Late(nn.Linear):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        Late.calls += 1\n"
        "        if Late.calls == 8:\n"
        "            raise RuntimeError('the eighth')\n"
        "        return super().forward(x.flatten(1))\n"
        "def make(num_classes):\n"
        "    return Late(64, num_classes)\n"
    )
    words = (*TINY[:-1], "model=custom", f"model.path={tmp_path / 'late.py'}:make", "trainer.max_steps=20")
    run = Done(tmp_path / "r", *words, "checkpoint.every=2", code=5)
    assert "late.py:7: RuntimeError: the eighth" in run.summary["reason"]
    assert (run.folder / "FAILED").exists()
    assert Done(tmp_path / "r", *words, "checkpoint.every=2", "resume=auto").summary["steps"] == 20


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("halves", "self.half(); return super().forward(x.flatten(1).half())", "leave formats to precision"),
        ("leaves", "import sys; sys.exit(7)", "SystemExit: 7"),
    ],
)
def test_a_model_that_can_not_be_trained_is_refused_before_the_first_batch(
    name: str, body: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / f"{name}.py").write_text(
        "from torch import nn\n"
        "class Odd(nn.Linear):\n"
        "    def forward(self, x):\n"
        f"        {body}\n"
        "def make(num_classes):\n"
        "    return Odd(64, num_classes)\n"
    )
    words = (*TINY[:-1], "model=custom", f"model.path={tmp_path / name}.py:make", "trainer.max_steps=2")
    with pytest.raises(ModelError, match=message):
        Done(tmp_path / "r", *words)
    assert not (tmp_path / "r").exists()


def test_lbfgs_trains_a_channels_last_net(tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *TINY, "optimizer=lbfgs", "optimizer.lr=0.5", "trainer.max_steps=6", "model.dropout=0")
    assert run.steps[-1]["loss"] < run.steps[0]["loss"]
