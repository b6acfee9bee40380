"""torch's compiler: its lack is told before anything is written, what it refuses in words, and neither is a bug."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mpt.build import make_plan
from mpt.cli import main
from mpt.config.compose import compose
from mpt.errors import ConfigError
from mpt.predict.fake import trace
from mpt.train.compiler import not_compiled, require_compiler
from mpt.train.faults import ending_of
from tests.e2e._run import Done

WORDS = ("model=mlp", "data=digits", "data.limit=64", "device=cpu", "trainer.compile=true")


@pytest.fixture
def no_compiler() -> Iterator[None]:
    from torch._inductor import config

    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        yield


def test_a_run_without_a_compiler_is_refused_with_nothing_written_and_its_plan_is_not(
    no_compiler: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", *WORDS, f"run_dir={run}", "trainer.max_steps=1"]) == 2
    told = capsys.readouterr().err
    assert "there is no C++ compiler here" in told
    assert "leave trainer.compile away" in told
    assert not run.exists()
    cfg = compose(list(WORDS))
    assert trace(cfg, make_plan(cfg)).ops


def test_a_run_that_is_emulated_needs_no_compiler(no_compiler: None) -> None:
    cfg = compose([*WORDS, "precision=fp8"])
    require_compiler(cfg, make_plan(cfg))


def test_a_folder_for_kernels_that_cant_be_made_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    cfg = compose(list(WORDS))
    with pytest.raises(ConfigError) as error:
        require_compiler(cfg, make_plan(cfg))
    assert "TORCHINDUCTOR_CACHE_DIR" in error.value.problems[0].hint


class Refused(nn.Module):
    """One that torch compiles only where there is a kernel to ask for shapes: here is none."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(_without_shapes(x.flatten(1)))
        return out


@torch.library.custom_op("mpt_tests::without_shapes", mutates_args=())
def _without_shapes(x: Tensor) -> Tensor:
    return x * 2


def test_a_model_that_the_compiler_refuses_ends_the_run_with_its_line_and_the_way_out(tmp_path: Path) -> None:
    done = Done(
        tmp_path / "run", "model=custom", f"model.path={__file__}:Refused", *WORDS[1:], "trainer.max_steps=1",
        "trainer.predict=true", code=5,
    )  # fmt: skip
    reason = done.summary["reason"]
    assert "torch can't compile this model" in reason
    assert Path(__file__).name in reason
    assert "leave trainer.compile away" in reason
    assert "register_fake" in reason


def test_what_fails_in_a_compiled_graph_is_no_refusal() -> None:
    def forward(x: Tensor, table: Tensor) -> Tensor:
        return table[x] * 2

    compiled: Any = torch.compile(forward, backend="eager")
    table = torch.ones(3)
    compiled(torch.tensor([0, 1]), table)
    with pytest.raises(IndexError) as error:
        compiled(torch.tensor([7, 1]), table)
    torch.compiler.reset()
    assert not_compiled(error.value) is None


def test_what_the_compiler_does_not_support_is_told_by_its_explanation() -> None:
    def forward(x: Tensor) -> Tensor:
        print("shown")
        return x * 2

    with pytest.raises(RuntimeError) as error:
        torch.compile(forward, backend="eager", fullgraph=True)(torch.ones(2))
    torch.compiler.reset()
    ending = ending_of(error.value)
    assert ending is not None
    first, hint = ending.reason.splitlines()
    assert "does not know how to trace" in first
    assert "leave trainer.compile away" in hint
