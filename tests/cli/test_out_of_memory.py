"""Memory that runs out in any command is the machine's fault, not a bug in mpt."""

from __future__ import annotations

import pytest
import torch

from mpt import cli
from mpt.errors import ExitCode

CPU = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 60211200000 bytes")


@pytest.mark.parametrize("error", [CPU, MemoryError(), torch.OutOfMemoryError("CUDA out of memory")], ids=repr)
def test_memory_that_runs_out_is_told_with_what_takes_less(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "dispatch", fail)
    assert cli.main(["plan"]) == ExitCode.FAULT
    told = capsys.readouterr().err
    assert told.startswith("mpt plan: out of memory")
    assert "lower data.batch_size" in told
    assert "bug" not in told


def test_another_runtime_error_is_still_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: list[str]) -> int:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(cli, "dispatch", fail)
    assert cli.main(["plan"]) == ExitCode.BUG
    assert "a bug in mpt" in capsys.readouterr().err
