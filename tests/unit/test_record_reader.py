"""The reader of run folders: everything that is there, whatever state it was left in."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from mpt.errors import RecordError
from mpt.record.reader import read_run
from mpt.record.strict import dumps, loads, restored
from mpt.record.writer import RunWriter
from mpt.types import StepRow

NAN = math.nan


def row(step: int, **changes: object) -> StepRow:
    base = StepRow(step, step, True, 1 / step, 1e-3, 0.75, 65536.0, 32, 0.0125, 0.00025)
    return base._replace(**changes)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "a run, with=odd ünames"
    with RunWriter(folder) as writer:
        writer.text("config.yaml", "name: mine\nseed: 3\n")
        writer.json("plan", {"schema": "mpt.plan/1", "scaling": "none"})
        writer.steps([row(i) for i in range(1, 4)])
        writer.event("skip", step=2, loss=NAN)
        writer.evaluation({"step": 3, "accuracy": 0.5})
        writer.finish("DONE", "3 steps")
    return folder


def test_everything_that_was_written_is_read_back(run: Path) -> None:
    data = read_run(run)
    assert (data.status, data.reason, data.name, data.flaws) == ("done", "3 steps", "mine", ())
    assert list(data.steps.rows()) == [row(i) for i in range(1, 4)]
    assert data.config == {"name": "mine", "seed": 3}
    assert data.plan["scaling"] == "none"
    assert data.evals == [{"step": 3, "accuracy": 0.5}]
    assert [e["kind"] for e in data.events] == ["skip"]
    assert math.isnan(data.events[0]["loss"])


def test_nonfinite_numbers_come_back_as_they_were(run: Path) -> None:
    rows = [row(4, loss=NAN), row(5, loss=math.inf, grad_norm=-math.inf), row(6, scale=math.inf)]
    with RunWriter.reopen(run) as writer:
        writer.steps(rows)
    steps = read_run(run).steps
    assert math.isnan(steps.loss[3])
    assert (steps.loss[4], steps.grad_norm[4], steps.scale[5]) == (math.inf, -math.inf, math.inf)
    assert steps.loss[:3] == [1, 1 / 2, 1 / 3]


def test_a_long_run_is_read_row_for_row_over_all_chunks(tmp_path: Path) -> None:
    rows = [row(i, applied=i % 7 > 0, loss=NAN if i == 777 else 1 / i) for i in range(1, 2600)]
    with RunWriter(tmp_path / "r") as writer:
        writer.steps(rows)
    steps = read_run(tmp_path / "r").steps
    assert steps.step == list(range(1, 2600))
    assert steps.applied == [i % 7 > 0 for i in range(1, 2600)]
    assert [i for i, loss in enumerate(steps.loss, 1) if loss != 1 / i] == [777]


@pytest.mark.parametrize("tail", [b'{"step":4', b"{", b'{"step":4,"update":4,"applied":true,"loss":nul'])
def test_a_torn_last_line_is_skipped_and_told(run: Path, tail: bytes) -> None:
    with (run / "steps.jsonl").open("ab") as file:
        file.write(tail)
    data = read_run(run)
    assert data.steps.step == [1, 2, 3]
    assert data.flaws == ("steps.jsonl: a torn last line was skipped",)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1, 2]",
        "7",
        "null",
        '{"step": 4}',
        '{"step": NaN}',
        "",
        "\x00\x00",
        "},{",
        '{"step":4,"update":4,"applied":true,"loss":"x","lr":1,"grad_norm":1,"scale":1,"samples":1,"time_s":1,"data_wait_s":1}',
        '{"step":2,"update":2,"applied":true,"loss":1,"lr":1,"grad_norm":1,"scale":1,"samples":1,"time_s":1,"data_wait_s":1}',
        '{"step":4,"update":4,"applied":true,"loss":null,"lr":1,"grad_norm":1,"scale":1,"samples":1,"time_s":1,"data_wait_s":1}',
    ],
)
def test_a_line_that_is_no_next_step_is_skipped_and_counted(run: Path, line: str) -> None:
    with (run / "steps.jsonl").open("a") as file:
        file.write(line + "\n")
    with (run / "steps.jsonl").open("a") as file:
        file.write(json.dumps(row(9)._asdict()) + "\n")
    data = read_run(run)
    assert data.steps.step == [1, 2, 3, 9]
    assert data.flaws == ("steps.jsonl: 1 line that can't be read or are out of order were skipped",)


def test_missing_and_damaged_documents_are_named_and_the_rest_is_read(run: Path) -> None:
    (run / "config.yaml").write_text("a: [1")
    (run / "plan.json").write_text('{"a": NaN}')
    (run / "audit.json").write_text("[]")
    (run / "summary.json").write_text('{"schema": "mpt.summary/9"}')
    (run / "evals.jsonl").unlink()
    (run / "events.jsonl").write_text('{"schema": "mpt.events/3"}\n')
    data = read_run(run)
    assert data.steps.step == [1, 2, 3]
    assert (data.config, data.plan, data.audit, data.summary, data.events, data.evals) == ({}, {}, {}, {}, [], [])
    told = "\n".join(data.flaws)
    for name in ("config.yaml", "plan.json", "audit.json", "summary.json", "events.jsonl", "evals.jsonl"):
        assert name in told
    assert "mpt.summary/9" in told


def test_a_folder_with_only_a_configuration_is_a_run_that_never_started(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    data = read_run(tmp_path)
    assert (data.status, data.reason, len(data.steps)) == ("unfinished", "it never started", 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"schema": "mpt.steps/2"}', "newer mpt"),
        ('{"schema": "other/1"}', "not a record of mpt"),
        ("step,loss", "not a record of mpt"),
        ("[]", "not a record of mpt"),
    ],
)
def test_foreign_and_newer_records_are_refused_with_the_reason(run: Path, line: str, reason: str) -> None:
    (run / "steps.jsonl").write_text(line + "\n")
    with pytest.raises(RecordError, match=reason):
        read_run(run)


def test_what_is_no_run_folder_is_refused_and_runs_below_it_are_named(run: Path) -> None:
    with pytest.raises(RecordError, match="no run of mpt") as caught:
        read_run(run.parent)
    assert str(run) in caught.value.problems[0].hint
    with pytest.raises(RecordError, match="is a file"):
        read_run(run / "steps.jsonl")
    with pytest.raises(RecordError, match="no such folder"):
        read_run(run / "nowhere")


@pytest.mark.parametrize("marker", ["DONE", "FAILED", "DIVERGED", "INTERRUPTED"])
def test_the_status_is_that_of_the_marker(run: Path, marker: str) -> None:
    RunWriter.reopen(run).finish(marker, "why")
    assert (read_run(run).status, read_run(run).reason) == (marker.lower(), "why")


def test_a_run_that_another_process_is_writing_is_running_and_unfinished_once_it_was_killed(run: Path) -> None:
    code = "import sys; from pathlib import Path; from mpt.record.writer import RunWriter\n"
    code += "w = RunWriter.reopen(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        assert read_run(run).status == "running"
        assert read_run(run).status == "running"
        writer.kill()
    assert read_run(run).status == "unfinished"


def test_reading_needs_neither_torch_nor_numpy(run: Path) -> None:
    code = "import sys; from mpt.record.reader import read_run; read_run(sys.argv[1])\n"
    code += "print([m for m in ('torch', 'numpy', 'hydra') if m in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout == "[]\n"


def test_strict_json_refuses_what_json_does_not_have() -> None:
    for text in ('{"a": NaN}', "[Infinity]", "-Infinity"):
        with pytest.raises(ValueError, match="is not JSON"):
            loads(text)


def test_marks_put_numbers_back_only_where_they_belong() -> None:
    row = {"a": NAN, "b": -math.inf, "c": [NAN], "d": "nan"}
    back = restored(loads(dumps(row)))
    assert math.isnan(back["a"])
    assert (back["b"], back["c"], back["d"]) == (-math.inf, [None], "nan")
    assert restored({"a": 1, "nonfinite": "no marks"}) == {"a": 1, "nonfinite": "no marks"}
