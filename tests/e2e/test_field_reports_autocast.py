"""Theme B of the field reports: what autocast does to people, tried on whole runs; names carry the report's id."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mpt.checkpoint import load
from tests.e2e._run import TINY, Done

HEAD = (
    "import torch\n"
    "from torch import nn\n"
    "from torch.utils.checkpoint import checkpoint\n"
    "def make(num_classes, again=False):\n"
    "    return Net(num_classes, again)\n"
)
RECOMPUTING = HEAD + (
    "class Net(nn.Module):\n"
    "    def __init__(self, n, again):\n"
    "        super().__init__()\n"
    "        self.inner = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))\n"
    "        self.head, self.again = nn.Linear(64, n), again\n"
    "    def forward(self, x):\n"
    "        x = x.flatten(1)\n"
    "        for _ in range(2):\n"  # shared weights in two recomputed blocks (B13)
    "            x = checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)\n"
    "        return self.head(x)\n"
)
OWN_FUNCTION = HEAD + (
    "SEEN = []\n"
    "class Twice(torch.autograd.Function):\n"
    "    @staticmethod\n"
    "    def forward(ctx, x):\n"
    "        SEEN.append(('forward', x.dtype))\n"
    "        return x * 2\n"
    "    @staticmethod\n"
    "    def backward(ctx, g):\n"
    "        SEEN.append(('backward', g.dtype))\n"
    "        return g * 2\n"
    "class Net(nn.Module):\n"
    "    def __init__(self, n, again):\n"
    "        super().__init__()\n"
    "        self.a, self.b = nn.Linear(64, 16), nn.Linear(16, n)\n"
    "    def forward(self, x):\n"
    "        return self.b(Twice.apply(self.a(x.flatten(1))))\n"
)
CURIOUS = HEAD + (
    "class Net(nn.Linear):\n"
    "    def __init__(self, n, again):\n"
    "        super().__init__(64, n)\n"
    "    def forward(self, x):\n"
    "        if not self.training:\n"
    "            with torch.enable_grad():\n"
    "                y = x.detach().flatten(1).requires_grad_()\n"
    "                (g,) = torch.autograd.grad(super().forward(y).sum(), y)\n"
    "            assert g.isfinite().all()\n"
    "        return super().forward(x.flatten(1))\n"
)
FOURIER = HEAD + (
    "class Net(nn.Module):\n"
    "    def __init__(self, n, again):\n"
    "        super().__init__()\n"
    "        self.a, self.b = nn.Linear(64, 60), nn.Linear(60, n)\n"
    "    def forward(self, x):\n"
    "        return self.b(torch.fft.fft(self.a(x.flatten(1))).real)\n"
)


def own(folder: Path, name: str, text: str) -> tuple[str, ...]:
    (folder / f"{name}.py").write_text(text)
    return (*TINY[:-1], "model=custom", f"model.path={folder / name}.py:make", "trainer.max_steps=6")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_b6_evaluating_after_every_step_changes_no_bit_of_the_training(precision: str, tmp_path: Path) -> None:
    words = (*TINY, f"precision={precision}", "trainer.max_steps=8")
    never = Done(tmp_path / "a", *words, "trainer.eval_every=0")
    always = Done(tmp_path / "b", *words, "trainer.eval_every=1")
    a, b = load(never.folder)["model"], load(always.folder)["model"]
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert len(always.evals) == 8
    assert never.summary["idle_weights"] == []


def test_b8_gradients_can_be_had_in_an_evaluation(tmp_path: Path) -> None:
    assert Done(tmp_path / "r", *own(tmp_path, "curious", CURIOUS), "precision=bf16").evals


def test_b9_a_function_of_the_users_own_sees_one_format_forward_and_backward(tmp_path: Path) -> None:
    Done(tmp_path / "r", *own(tmp_path, "functional", OWN_FUNCTION), "precision=bf16")
    import sys

    seen = sys.modules["functional"].SEEN
    assert {dtype for _, dtype in seen} == {torch.bfloat16}
    assert {when for when, _ in seen} == {"forward", "backward"}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_b12_b13_recomputed_activations_have_the_forwards_format(precision: str, tmp_path: Path) -> None:
    words = (*own(tmp_path, f"recomputing_{precision}", RECOMPUTING), f"precision={precision}")
    plain = Done(tmp_path / "a", *words)
    again = Done(tmp_path / "b", *words, "model.kwargs={again:true}")
    assert [row["loss"] for row in again.steps] == [row["loss"] for row in plain.steps]
    assert [row["grad_norm"] for row in again.steps] == [row["grad_norm"] for row in plain.steps]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_b5_a_fourier_transform_of_half_activations_is_an_island_of_float32(precision: str, tmp_path: Path) -> None:
    run = Done(tmp_path / "r", *own(tmp_path, f"fourier_{precision}", FOURIER), f"precision={precision}")
    assert run.steps[-1]["applied"]  # the scale may have begun too high
    assert all(row["loss"] is not None for row in run.steps)
