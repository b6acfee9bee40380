"""The report of one run, in any state, in three forms, without torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mpt.errors import RecordError
from mpt.record.reader import read_run
from mpt.record.writer import RunWriter
from mpt.report.command import report
from mpt.report.json import to_json
from mpt.report.markdown import to_markdown
from mpt.report.section import clean, thinned
from mpt.report.sections import sections
from mpt.report.sparkline import sparkline
from mpt.report.text import render
from mpt.types import StepRow, Unmeasured

NAN = math.nan
HOSTILE = "[red]a[/red] `b` *c* |d| <script>e</script> \x1b[31mf\u202e _g_ [x](http://h)"


def row(step: int, **changes: Any) -> StepRow:
    base = StepRow(step, step, True, 2.0 / step, 1e-3, 0.75, 65536.0, 32, 0.5, 0.05)
    return base._replace(**changes)


def plan(how: str = "native") -> dict[str, Any]:
    return {
        "schema": "mpt.plan/1",
        "name": "mine",
        "params": 56554,
        "precision": "bf16",
        "scaling": "dynamic",
        "mechanism": {"compute": "bfloat16", "how": how, "reason": "avx512_bf16", "device": "cpu"},
        "length": {"steps": 20},
        "rows": [{"name": "0", "kind": "gemm"}, {"name": "1", "kind": "norm"}],
        "notes": ["said beforehand"],
    }


AUDIT = {
    "schema": "mpt.audit/1",
    "verdict": "differs",
    "loss_format": "float32",
    "notes": [],
    "rows": [
        {"name": "0", "planned": "bfloat16", "forward": ["bfloat16"], "backward": ["bfloat16"], "matches": True},
        {"name": "1", "planned": "float32", "forward": ["bfloat16"], "backward": [], "matches": False, "note": "odd"},
    ],
}

SUMMARY = {
    "schema": "mpt.summary/1",
    "name": "mine",
    "final": {"train_loss": 0.1, "eval_loss": NAN, "accuracy": 0.9812},
    "best": {"accuracy": 0.99, "update": 10},
    "precision": {"requested": "bf16", "effective": "bfloat16", "backend": "native", "audit": "differs"},
    "scaling": {"strategy": "dynamic", "growths": 2},
    "speed": {
        "samples_per_s": 1234.5,
        "step_p50_ms": 10.0,
        "step_p95_ms": 12.0,
        "n": 15,
        "data_wait_share": 0.41,
        "mfu": Unmeasured("no peak"),
        "startup_s": 1.0,
    },
    "memory": {
        "peak_bytes": 512_000_000,
        "params_bytes": 1_000_000,
        "activations_bytes": Unmeasured("no pass was observed"),
        "method": "by hand",
    },
    "time_s": {"total": 20.0, "train": 15.0, "eval": 2.0, "checkpoint": 0.5, "data": 1.0},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def made(folder: Path, *, marker: str = "DONE", reason: str = "20 steps", how: str = "native", **summary: Any) -> Path:
    """A run of 20 steps: one with a NaN loss, one whose gradients overflowed."""
    with RunWriter(folder) as writer:
        writer.text("config.yaml", "seed: 3\nmodel: {name: small_cnn, choice: small_cnn}\n")
        writer.text("source.txt", "command: mpt train 'name=a b'\nmpt: 0.1.0\n\n--- changes ---\n+x\n")
        writer.json("plan", plan(how))
        writer.json("audit", AUDIT)
        rows = [row(i) for i in range(1, 21)]
        rows[6] = row(7, loss=NAN, applied=False)
        rows[11] = row(12, grad_norm=math.inf, applied=False, scale=32768.0)
        writer.steps(rows)
        writer.event("skip", step=7, cause="nonfinite_loss", scale=65536.0, loss=NAN)
        writer.event("skip", step=12, cause="gradient_overflow", scale=32768.0, loss=0.1)
        for step, accuracy in ((10, 0.99), (20, 0.9812)):
            writer.evaluation(
                {"step": step, "update": step, "accuracy": accuracy, "best": step == 10, "precision": "same"}
            )
        writer.json("summary", {**SUMMARY, **summary})
        writer.finish(marker, reason)
    return folder


def text_of(folder: Path) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"), markup=False, highlight=False)  # noqa: SIM115
    with console.file:
        console.print(render(sections(read_run(folder))))
        return console.export_text()


def both(folder: Path) -> list[str]:
    """The report for a terminal, and as Markdown without its escapes."""
    return [text_of(folder), to_markdown(sections(read_run(folder))).replace("\\", "")]


def test_a_finished_run_is_told_with_all_its_figures(folder: Path) -> None:
    for text in both(made(folder)):
        for part in (
            "done: 20 steps",
            "20, 2 skipped",
            "accuracy 0.9812",
            "eval_loss nan",
            "1,234 samples/s",
            "512 MB",
            "by hand",
            "not measured: no pass was observed",
            "mpt train 'name=a b'",
            "the tree had changes",
            "56,554 parameters",
            "said beforehand",
            "best",
        ):
            assert part in text, part


def test_nan_losses_are_counted_and_the_first_is_named(folder: Path) -> None:
    for text in both(made(folder)):
        assert "1 step had a non-finite loss, the first was step 7" in text
        assert "×" in text
    data = to_json(sections(read_run(folder)), folder)["headline"]
    assert (data["nonfinite_losses"], data["first_nonfinite_loss"]) == (1, 7)


def test_skips_are_told_with_their_causes(folder: Path) -> None:
    for text in both(made(folder)):
        assert "2 of 20 (10.00%): 1 nonfinite loss, 1 gradient overflow" in text
        assert "no loss scale can cure that" in text
    assert to_json(sections(read_run(folder)), folder)["scaling"]["causes"] == {
        "nonfinite loss": 1,
        "gradient overflow": 1,
    }


def test_skips_of_steps_that_a_resume_cut_off_are_not_counted(folder: Path) -> None:
    made(folder)
    with RunWriter.reopen(folder) as writer:
        writer.event("skip", step=25, cause="gradient_overflow")
        writer.event("skip", step=12, cause="gradient_overflow")
    assert to_json(sections(read_run(folder)), folder)["scaling"]["causes"] == {
        "nonfinite loss": 1,
        "gradient overflow": 1,
    }


def test_modules_that_differ_from_the_plan_are_named(folder: Path) -> None:
    for text in both(made(folder)):
        assert "1 of 2 modules differ from the plan" in text
        assert "what was observed is not what was planned" in text
        assert "odd" in text


def test_a_run_that_waited_for_data_is_called_data_bound(folder: Path) -> None:
    for text in both(made(folder)):
        assert "data-bound: 41% of the step was spent waiting" in text


def test_an_emulated_run_makes_no_speed_claim(folder: Path) -> None:
    for text in both(made(folder, how="emulated")):
        assert "no speed claim" in text
    assert to_json(sections(read_run(folder)), folder)["speed"]["emulated"] is True


def test_a_native_run_says_nothing_of_emulation(folder: Path) -> None:
    for text in both(made(folder)):
        assert "emulated" not in text


@pytest.mark.parametrize(
    ("marker", "part"),
    [
        ("FAILED", "did not finish (failed)"),
        ("DIVERGED", "did not finish (diverged)"),
        ("INTERRUPTED", "resume=auto"),
    ],
)
def test_a_run_that_ended_early_is_reported_as_such(folder: Path, marker: str, part: str) -> None:
    for text in both(made(folder, marker=marker, reason="because")):
        assert f"{marker.lower()}: because" in text
        assert part in text


def test_a_killed_run_without_a_summary_is_told_from_its_steps(folder: Path) -> None:
    made(folder)
    (folder / "DONE").unlink()
    (folder / "summary.json").unlink()
    with (folder / "steps.jsonl").open("ab") as file:
        file.write(b'{"step":21,')
    for text in both(folder):
        assert "did not finish (unfinished)" in text
        assert "64 samples/s over 15 steps" in text
        assert "computed from steps.jsonl" in text
        assert "a torn last line was skipped" in text


def test_a_run_without_a_single_step_is_reported(folder: Path) -> None:
    RunWriter(folder).close()
    for text in both(folder):
        assert "no step was taken" in text
        assert "0 steps, fewer than the 5 warm-up steps + 1" in text
    json.dumps(to_json(sections(read_run(folder)), folder), allow_nan=False)


def test_text_of_users_is_shown_as_text_everywhere(folder: Path) -> None:
    run = made(folder, reason=HOSTILE, name=HOSTILE)
    (run / "source.txt").write_text(f"command: {HOSTILE}\n")
    text, markdown = text_of(run), to_markdown(sections(read_run(run)))
    assert "[red]a[/red]" in text
    for form in (text, markdown):
        assert "\x1b" not in form
        assert "\u202e" not in form
    assert "<script>" not in markdown
    assert "&lt;script&gt;" in markdown
    assert "\\[x\\](http://h)" in markdown
    assert "\\|d\\|" in markdown


def test_the_report_is_strict_json_with_every_section(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(str(made(folder)), as_json=True) == 0
    out = capsys.readouterr().out
    document = json.loads(out, parse_constant=pytest.fail)
    sections = {"headline", "precision", "speed", "memory", "scaling", "evaluations", "configuration"}
    assert sections <= document.keys()
    assert document["schema"] == "mpt.report/1"
    assert document["headline"]["final"]["accuracy"] == 0.9812


def test_the_report_tells_a_command_that_runs_it_again_elsewhere_and_no_label_twice(folder: Path) -> None:
    made(folder)
    (folder / "source.txt").write_text(
        "command: mpt train resume=run\nbegun by: mpt train 'name=a b' run_dir=run resume=auto\n"
        "folder: there\nmpt commit: aaa\ncommit: bbb\n"
    )
    facts = next(s for s in sections(read_run(folder)) if s.key == "configuration").facts
    told = dict(facts)
    assert len(told) == len(facts)
    assert told["run it again"] == f"mpt train 'name=a b' run_dir={folder}-again"
    assert (told["command"], told["folder"], told["typed in"]) == ("mpt train resume=run", str(folder), "there")
    assert (told["mpt commit"], told["commit there"]) == ("aaa", "bbb")
    (folder / "source.txt").write_text("command: mpt train 'name\n")
    assert "run it again" not in dict(next(s for s in sections(read_run(folder)) if s.key == "configuration").facts)


def test_the_command_prints_the_text_and_writes_the_markdown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(str(made(folder)), as_json=False) == 0
    assert "done: 20 steps" in capsys.readouterr().out
    assert (folder / "report.md").read_text(encoding="utf-8") == to_markdown(sections(read_run(folder)))


def test_a_folder_that_can_not_be_written_to_is_still_reported(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(folder)

    def refuses(self: Path, *args: Any, **kwargs: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuses)
    assert report(str(folder), as_json=False) == 0
    out, err = capsys.readouterr()
    assert "done: 20 steps" in out
    assert "report.md was not written: Permission denied" in err


def test_a_folder_without_a_run_is_refused_and_nothing_is_written_there(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no run of mpt"):
        report(str(tmp_path), as_json=False)
    assert list(tmp_path.iterdir()) == []


def test_reporting_needs_no_torch(folder: Path) -> None:
    code = "import sys; from mpt.report.command import report; report(sys.argv[1], False)\n"
    code += "print([m for m in ('torch', 'hydra') if m in sys.modules], file=sys.stderr)"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(made(folder))]
    assert subprocess.run(command, capture_output=True, text=True, cwd=root, check=True).stderr.endswith("\n[]\n")


def test_documents_of_odd_shapes_never_break_a_report(folder: Path) -> None:
    made(folder)
    for name in ("plan", "audit", "summary", "env"):
        for odd in ("{}", '{"rows": 3, "notes": 1, "mechanism": [], "speed": "x", "memory": {"peak_bytes": "y"}}'):
            (folder / f"{name}.json").write_text(odd)
            both(folder)
            json.dumps(to_json(sections(read_run(folder)), folder))
    (folder / "config.yaml").write_text("model: 3\nseed: [1]\n")
    both(folder)


def test_a_curve_shows_its_shape_and_marks_what_is_not_finite() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, NAN, 3.0]) == "▁×█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([NAN, math.inf]) == "××"
    assert sparkline([]) == ""
    assert len(sparkline([float(i) for i in range(100_000)])) == 60
    spike = [1.0] * 1000
    spike[500] = NAN
    assert sparkline(spike).count("×") == 1


def test_thinning_keeps_first_and_last() -> None:
    assert thinned(5, 10) == [0, 1, 2, 3, 4]
    few = thinned(1000, 10)
    assert (few[0], few[-1], len(few)) == (0, 999, 10)


def test_controls_become_visible_and_lines_become_one() -> None:
    assert clean("a\x1b[0m\r\u200fb\nc\td\udc80é") == "a\\x1b[0m\\x0d\\x200fb c d\\xdc80é"


def test_faults_put_in_on_purpose_and_where_skips_began_are_told(folder: Path) -> None:
    made(folder)
    gradient = {"name": "3.weight", "kind": "nan", "elements": 18432, "inf": 66, "nan": 62, "share": 0.0069}
    with RunWriter.reopen(folder) as writer:
        writer.event("injected", step=12, module="3", fault="inf", where="backward")
        writer.event(
            "skip", step=12, cause="gradient_overflow", nonfinite_tensors=4, tensors=11, first_in_backward="3.weight",
            module="3", gradients=[gradient],
        )  # fmt: skip
        writer.event("nonfinite_forward", step=7, module="0.conv")
        writer.event("guard", step=9, guard="nan", action="rollback", reason="the loss is nan")
        writer.event("rollback", step=9, to_step=5, undone=4, checkpoint="update-000005", reason="the loss is nan")
    for text in both(folder):
        assert "1 fault put in on purpose (debug.inject), at step 12" in text
        assert "inf put into the backward pass of 3" in text
        assert "4 of 11; 3.weight: 66 inf, 62 NaN of 18,432" in text
        assert "first in 0.conv" in text
        assert "back to update-000005, 4 updates undone: the loss is nan" in text
    skips = to_json(sections(read_run(folder)), folder)["scaling"]["skips"]
    assert {skip["step"]: skip["began_in"] for skip in skips} == {7: "0.conv", 12: "3.weight"}


def test_a_run_without_faults_says_nothing_of_them(folder: Path) -> None:
    made(folder)
    assert "events" not in to_json(sections(read_run(folder)), folder)
