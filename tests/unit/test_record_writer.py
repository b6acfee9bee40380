"""The writer of run folders: strict lines, atomic documents, cuts and repairs, one writer."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from mpt.errors import ExitCode, RecordError, RunFault
from mpt.record.folder import new_run_dir, safe_name
from mpt.record.writer import RunWriter, past
from mpt.types import StepRow, Unmeasured

NAN, INF = math.nan, math.inf


def row(step: int, update: int | None = None, loss: float = 2.5, **changes: object) -> StepRow:
    base = StepRow(step, step if update is None else update, True, loss, 1e-3, 0.75, 65536.0, 32, 0.0125, 0.00025)
    return base._replace(**changes)


def refuse(constant: str) -> object:
    raise AssertionError(f"{constant} is not strict JSON")


def lines(path: Path) -> list[dict[str, object]]:
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_line_1_of_steps_names_the_schema_and_each_step_has_its_members_in_order(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1), row(2)])
    head, first, second = (folder / "steps.jsonl").read_text().splitlines()
    assert head == '{"schema": "mpt.steps/1"}'
    assert list(json.loads(first)) == list(StepRow._fields)
    assert json.loads(second)["step"] == 2


def test_numbers_of_a_step_are_read_back_with_all_their_bits(folder: Path) -> None:
    loss, lr, norm = 0.1 + 0.2, 1 / 3, 5e-324
    with RunWriter(folder) as writer:
        writer.steps([row(1, loss=loss, lr=lr, grad_norm=norm, scale=2.0**24)])
    got = lines(folder / "steps.jsonl")[1]
    assert (got["loss"], got["lr"], got["grad_norm"], got["scale"]) == (loss, lr, norm, 2.0**24)
    assert got["applied"] is True


def test_times_of_a_step_are_kept_to_the_nanosecond(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1, time_s=1.23456789012, data_wait_s=9e-10)])
    got = lines(folder / "steps.jsonl")[1]
    assert (got["time_s"], got["data_wait_s"]) == (1.23456789, 1e-9)


@pytest.mark.parametrize(("value", "word"), [(NAN, "nan"), (INF, "inf"), (-INF, "-inf")])
def test_a_nonfinite_number_of_a_step_is_null_with_a_mark_beside_it(folder: Path, value: float, word: str) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1, grad_norm=value), row(2, loss=value, scale=value)])
    _, first, second = lines(folder / "steps.jsonl")
    assert first["grad_norm"] is None
    assert first["nonfinite"] == {"grad_norm": word}
    assert second["nonfinite"] == {"loss": word, "scale": word}
    assert second["lr"] == 1e-3


def test_infinities_of_opposite_sign_and_sums_that_overflow_do_not_hide_each_other(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1, loss=INF, grad_norm=-INF), row(2, loss=1e308, grad_norm=1e308, scale=1e308)])
    _, first, second = lines(folder / "steps.jsonl")
    assert first["nonfinite"] == {"loss": "inf", "grad_norm": "-inf"}
    assert second["loss"] == 1e308
    assert "nonfinite" not in second


def test_numbers_of_other_libraries_are_written_as_plain_json(folder: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with RunWriter(folder) as writer:
        writer.steps([row(1, loss=numpy.float64(0.25), lr=numpy.float32(0.5))])
    assert (lines(folder / "steps.jsonl")[1]["loss"], lines(folder / "steps.jsonl")[1]["lr"]) == (0.25, 0.5)


@pytest.mark.parametrize("second", [1, 0, -1])
def test_steps_that_do_not_increase_are_refused_and_nothing_of_the_call_is_written(folder: Path, second: int) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1)])
        before = (folder / "steps.jsonl").read_bytes()
        with pytest.raises(RecordError, match=f"step {second} comes after step 2"):
            writer.steps([row(2), row(second)])
        assert (folder / "steps.jsonl").read_bytes() == before
        writer.steps([row(2)])


def test_lines_are_on_disk_when_the_call_returns(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1)])
        writer.event("skip", step=1)
        writer.evaluation({"step": 1, "accuracy": 0.5})
        for name in ("steps.jsonl", "events.jsonl", "evals.jsonl"):
            assert len(lines(folder / name)) == 2


def test_events_and_evaluations_are_strict_json(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.event("skip", loss=NAN, shares=[1.0, INF], nested={"a": -INF}, path=Path("a b"), text="ü\n\x1b\udc80")
        writer.evaluation({"step": 3, "accuracy": NAN, "perplexity": Unmeasured("no tokens")})
    event, evaluation = lines(folder / "events.jsonl")[1], lines(folder / "evals.jsonl")[1]
    assert event["nonfinite"] == {"loss": "nan", "shares[1]": "inf"}
    assert event["shares"] == [1.0, None]
    assert event["nested"] == {"a": None, "nonfinite": {"a": "-inf"}}
    assert event["text"] == "ü\n\x1b\udc80"
    assert datetime.fromisoformat(str(event["time"])).tzinfo is not None
    assert evaluation == {
        "step": 3,
        "accuracy": None,
        "perplexity": None,
        "perplexity_reason": "no tokens",
        "nonfinite": {"accuracy": "nan"},
    }


def test_a_document_is_replaced_whole_and_leaves_no_other_file(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.json("summary", {"mfu": Unmeasured("unknown device"), "n": 1})
        writer.json("summary", {"mfu": 0.4, "n": 2})
        writer.text("config.yaml", "name: ü\n")
    assert json.loads((folder / "summary.json").read_text()) == {"mfu": 0.4, "n": 2}
    assert (folder / "config.yaml").read_text(encoding="utf-8") == "name: ü\n"
    names = {"steps.jsonl", "events.jsonl", "evals.jsonl", "numerics.jsonl", "summary.json", "config.yaml"}
    assert {p.name for p in folder.iterdir()} == names


def test_a_value_without_a_json_form_is_refused_and_the_old_document_stays(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.json("plan", {"a": 1})
        with pytest.raises(TypeError, match="b: object has no JSON form"):
            writer.json("plan", {"b": object()})
    assert json.loads((folder / "plan.json").read_text()) == {"a": 1}


@pytest.mark.parametrize("name", ["steps.jsonl", "config.yaml", "DONE", "checkpoints", "summary.json"])
def test_a_folder_that_holds_another_run_is_refused_and_left_alone(folder: Path, name: str) -> None:
    folder.mkdir()
    (folder / name).write_text("old")
    with pytest.raises(RecordError, match="holds another run") as caught:
        RunWriter(folder)
    assert caught.value.exit_code == ExitCode.REFUSED
    assert [(p.name, p.read_text()) for p in folder.iterdir()] == [(name, "old")]


def test_a_folder_with_other_peoples_files_can_be_used(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    RunWriter(folder).close()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_place_where_no_folder_can_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file") as caught:
        RunWriter(tmp_path / "file" / "run")
    assert caught.value.problems[0].hint


def test_the_marker_holds_the_reason_and_replaces_the_one_of_an_earlier_end(folder: Path) -> None:
    RunWriter(folder).finish("INTERRUPTED", "SIGTERM after step 3")
    assert (folder / "INTERRUPTED").read_text() == "SIGTERM after step 3\n"
    again = RunWriter.reopen(folder)
    assert not (folder / "INTERRUPTED").exists()
    again.finish("DONE", "8 steps")
    assert [p.name for p in folder.iterdir() if p.name.isupper()] == ["DONE"]


def test_an_unknown_marker_is_a_mistake_of_the_programmer(folder: Path) -> None:
    with RunWriter(folder) as writer, pytest.raises(AssertionError, match="FINISHED"):
        writer.finish("FINISHED", "")


def test_truncate_cuts_steps_and_evaluations_to_the_offset_and_keeps_events(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1), row(2)])
        writer.evaluation({"step": 2})
        at_2 = writer.offset()
        kept = (folder / "steps.jsonl").read_bytes()
        writer.steps([row(3), row(4)])
        writer.evaluation({"step": 4})
        writer.event("skip", step=3)
    writer = RunWriter.reopen(folder)
    writer.truncate(at_2)
    assert writer.last_step == 2
    assert (folder / "steps.jsonl").read_bytes() == kept
    assert len(lines(folder / "evals.jsonl")) == 2
    assert [e["kind"] for e in lines(folder / "events.jsonl")[1:]] == ["skip"]
    writer.steps([row(3)])
    assert [r["step"] for r in lines(folder / "steps.jsonl")[1:]] == [1, 2, 3]


def test_an_interrupted_and_resumed_record_is_equal_to_an_unbroken_one(tmp_path: Path) -> None:
    rows = [row(i, loss=1 / i, grad_norm=NAN if i == 4 else 1.5) for i in range(1, 9)]
    with RunWriter(tmp_path / "whole") as whole:
        whole.steps(rows)
    with RunWriter(tmp_path / "broken") as broken:
        broken.steps(rows[:3])
        offset = broken.offset()
        broken.steps(rows[3:6])
    with RunWriter.reopen(tmp_path / "broken") as again:
        again.truncate(offset)
        again.steps(rows[3:])
    assert (tmp_path / "broken/steps.jsonl").read_bytes() == (tmp_path / "whole/steps.jsonl").read_bytes()


def test_truncate_to_nothing_keeps_the_first_line_only(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1)])
        writer.truncate({})
        assert lines(folder / "steps.jsonl") == [{"schema": "mpt.steps/1"}]
        writer.steps([row(1)])


def test_a_record_that_is_shorter_than_the_checkpoint_says_goes_on_and_tells_so(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1)])
        size = (folder / "steps.jsonl").stat().st_size
        writer.truncate({"steps": size + 500, "evals": 0})
        assert writer.last_step == 1
    gap = lines(folder / "events.jsonl")[1]
    assert (gap["kind"], gap["file"], gap["bytes"], gap["wanted_bytes"]) == (
        "record_gap",
        "steps.jsonl",
        size,
        size + 500,
    )


def test_an_offset_in_the_middle_of_a_line_is_refused(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1), row(2)])
        offset = writer.offset()
        with pytest.raises(RecordError, match="middle of a line"):
            writer.truncate({**offset, "steps": offset["steps"] - 5})


@pytest.mark.parametrize("name", ["steps.jsonl", "events.jsonl", "evals.jsonl"])
def test_a_torn_last_line_is_repaired_on_reopening_and_told(folder: Path, name: str) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1), row(2)])
        writer.evaluation({"step": 2})
        writer.event("a")
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole + b'{"step":3,"upd')
    with RunWriter.reopen(folder) as writer:
        assert writer.last_step == 2
        assert (folder / name).read_bytes().startswith(whole)
    assert lines(folder / "events.jsonl")[-1]["torn_bytes"] == {name: 14}
    assert len(lines(folder / "steps.jsonl")) == 3


def test_a_record_killed_in_its_very_first_line_can_be_reopened(folder: Path) -> None:
    RunWriter(folder).close()
    (folder / "steps.jsonl").write_bytes(b'{"schema": "mpt')
    with RunWriter.reopen(folder) as writer:
        writer.steps([row(1)])
    assert [r.get("step") for r in lines(folder / "steps.jsonl")] == [None, 1]


def test_a_folder_without_a_run_can_not_be_reopened(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no steps\.jsonl"):
        RunWriter.reopen(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_record_of_another_schema_is_not_continued(folder: Path) -> None:
    RunWriter(folder).close()
    for text in ('{"schema": "mpt.steps/2"}\n{"step":', "someone else's file"):
        (folder / "steps.jsonl").write_text(text)
        with pytest.raises(RecordError, match="line 1 is"):
            RunWriter.reopen(folder)
        assert (folder / "steps.jsonl").read_text() == text


def test_history_of_an_older_run_is_copied_up_to_the_offset(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "old") as old:
        old.steps([row(1), row(2)])
        old.evaluation({"step": 2})
        offset = old.offset()
        old.steps([row(3)])
        old.event("skip", step=3)
    before = {p.name: p.read_bytes() for p in (tmp_path / "old").iterdir()}
    with RunWriter(tmp_path / "new") as new:
        new.begin_with(past(tmp_path / "old", offset))
        assert new.last_step == 2
        new.steps([row(3, loss=9.0)])
    assert [r.get("loss") for r in lines(tmp_path / "new/steps.jsonl")[1:]] == [2.5, 2.5, 9.0]
    assert len(lines(tmp_path / "new/evals.jsonl")) == 2
    assert [e["kind"] for e in lines(tmp_path / "new/events.jsonl")[1:]] == ["skip"]
    assert {p.name: p.read_bytes() for p in (tmp_path / "old").iterdir()} == before


def test_history_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text("step,loss\n")
    with RunWriter(tmp_path / "new") as new, pytest.raises(RecordError, match="line 1 is `step,loss`"):
        new.begin_with(past(tmp_path, {"steps": 10}))


def test_a_full_disk_is_a_fault_that_names_the_file_and_leaves_whole_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RunWriter(folder)
    writer.steps([row(1)])
    before = (folder / "steps.jsonl").read_bytes()
    real = os.write
    calls = []

    def full(fd: int, data: bytes) -> int:
        calls.append(fd)
        if len(calls) == 1:
            return real(fd, bytes(data)[:20])  # what a disk does that fills up: a short write, then an error
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunFault, match=r"steps\.jsonl: no space left on device") as caught:
        writer.steps([row(2)])
    monkeypatch.undo()
    assert caught.value.exit_code == ExitCode.FAULT
    assert caught.value.problems[0].hint
    assert (folder / "steps.jsonl").read_bytes() == before
    writer.steps([row(2)])
    assert len(lines(folder / "steps.jsonl")) == 3
    writer.close()


def test_a_folder_that_vanished_while_running_is_a_fault(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.steps([row(1)])
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        with pytest.raises(RunFault, match="deleted while the run was going"):
            writer.steps([row(2)])
        with pytest.raises(RunFault, match=r"summary\.json"):
            writer.json("summary", {})


def test_two_processes_can_not_write_one_run(folder: Path) -> None:
    code = "import sys; from pathlib import Path; from mpt.record.writer import RunWriter\n"
    code += "try: RunWriter.reopen(Path(sys.argv[1]))\n"
    code += "except Exception as e: print(type(e).__name__, e)\nelse: print('free')"
    root = Path(__file__).parents[2]

    def other() -> str:
        command = [sys.executable, "-c", code, str(folder)]
        return subprocess.run(command, capture_output=True, text=True, cwd=root, check=True).stdout

    with RunWriter(folder):
        assert "RecordError" in other()
    assert other() == "free\n"


def test_default_folders_never_collide(tmp_path: Path) -> None:
    now = datetime(2026, 11, 29, 14, 3, 22)
    made = [new_run_dir(tmp_path, "resnet50-bf16", now) for _ in range(3)]
    day = tmp_path / "2026-11-29"
    assert made == [day / f"14-03-22_resnet50-bf16{end}" for end in ("", "-2", "-3")]
    RunWriter(made[0]).close()


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("lr=1e-3,wd=0", "lr-1e-3-wd-0"),
        ("../../etc", "etc"),
        (".hidden", "hidden"),
        ("größe 1/2", "größe-1-2"),
        ("", "run"),
        ("=,=", "run"),
        ("a\x1b[31m\n", "a-31m"),
        ("x" * 300, "x" * 80),
    ],
)
def test_names_become_folder_names_without_equals_commas_or_slashes(name: str, safe: str) -> None:
    assert safe_name(name) == safe
