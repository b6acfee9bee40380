"""trainer.profile: a trace and a table of some steps, and nothing else changes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mpt.record.reader import read_run
from mpt.report.sections.profile import section
from mpt.telemetry import profile
from tests.e2e._cli import document
from tests.e2e._run import TINY, Done


@pytest.mark.parametrize(("steps", "asked", "first", "seen"), [(12, 2, 6, 2), (5, 2, 4, 2), (4, 9, 3, 2), (1, 9, 1, 1)])
def test_the_steps_asked_for_are_profiled_into_the_run_folder(
    steps: int, asked: int, first: int, seen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "_ROWS", 10_000)  # which ops are the longest is not this test's business
    run = Done(tmp_path / "run", *TINY, f"trainer.max_steps={steps}", f"trainer.profile={asked}")
    found = document(run.folder / "profile.json")
    assert (found["first_step"], found["steps"], found["by"]) == (first, seen, "cpu")
    names = {op["op"]: op for op in found["ops"]}
    assert names["aten::_fused_adamw_"]["calls"] == seen
    assert sum(op["self_ms"] for op in found["ops"]) <= found["total_ms"] * 1.000001
    with gzip.open(run.folder / "profile-trace.json.gz") as file:
        assert json.load(file)["traceEvents"]
    shown = section(read_run(run.folder))
    assert shown is not None
    assert shown.tables[0].rows[0][1].endswith("%")


def test_a_profiled_run_has_the_same_numbers_as_another(tmp_path: Path) -> None:
    plain = Done(tmp_path / "a", *TINY, "trainer.max_steps=8")
    profiled = Done(tmp_path / "b", *TINY, "trainer.max_steps=8", "trainer.profile=2")
    assert [s["loss"] for s in plain.steps] == [s["loss"] for s in profiled.steps]
    assert plain.summary["memory"]["peak_bytes"] == profiled.summary["memory"]["peak_bytes"]
    assert plain.summary["config_fingerprint"] == profiled.summary["config_fingerprint"]
    assert plain.summary["speed"]["n"] == profiled.summary["speed"]["n"] + 2  # the profiler slowed two
    assert not (plain.folder / "profile.json").exists()
    assert section(read_run(plain.folder)) is None
