"""A machine without a C++ compiler, and a model that torch's compiler gives up on: told as that, not as a bug."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch._inductor import cpp_builder
from torch._inductor.exc import InvalidCxxCompiler

from mpt.cli import main
from mpt.errors import ExitCode
from mpt.train import engine
from mpt.train.faults import ending_of
from tests.e2e._run import TINY

WORDS = ("model=mlp", *TINY, "trainer.max_steps=2", "trainer.compile=true")


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", search)


@pytest.mark.usefixtures("no_compiler")
def test_compiling_without_a_compiler_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *WORDS, f"run_dir={tmp_path / 'run'}"]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert "trainer.compile: got `true`, but there is no C++ compiler here" in told
    assert "install g++" in told
    assert not (tmp_path / "run").exists()
    assert main(["bench", *WORDS[:-1], "trainer.compile=false,true", "--budget-s", "0.01"]) == ExitCode.REFUSED
    assert "(with trainer.compile=true)" in capsys.readouterr().err


@pytest.mark.usefixtures("no_compiler")
def test_what_is_emulated_runs_eagerly_and_needs_no_compiler(tmp_path: Path) -> None:
    assert main(["train", *WORDS, "precision=fp16", "precision.backend=emulated", f"run_dir={tmp_path / 'run'}"]) == 0


def test_a_compiler_that_gives_up_in_a_bench_is_a_fault_of_the_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def give_up(*given: object, **more: object) -> object:
        raise InvalidCxxCompiler

    monkeypatch.setattr(engine, "_compiled", lambda *given, **more: give_up)
    assert main(["bench", *WORDS, "--budget-s", "0.01"]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert "torch can't compile this model" in told
    assert "bug" not in told
    ending = ending_of(InvalidCxxCompiler())
    assert ending is not None
    assert ending.exit_code == ExitCode.FAULT
    assert "leave trainer.compile away" in ending.reason
