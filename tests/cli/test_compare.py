"""`mpt compare` and `mpt report` as typed: exit codes, files, messages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mpt.cli import main
from mpt.errors import ExitCode
from tests.unit._runs_kit import write_run

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def runs(root: str, offset: float = 0.0, seeds: int = 3) -> Path:
    for seed in range(seeds):
        for precision, moved in (("fp32", 0.0), ("bf16", offset * (1 + 0.01 * seed))):
            write_run(Path(root) / f"{precision} {seed}", precision, seed, 0.9 + seed / 1000 + moved)
    return Path(root)


def test_a_folder_with_any_name_is_compared_and_gets_the_files(capsys: Capture) -> None:
    root = runs("a = b, ü", -0.0001)
    assert main(["compare", str(root)]) == ExitCode.FINISHED
    assert "equivalent" in capsys.readouterr().out
    assert {"compare.html", "compare.md", "compare.json"} <= {path.name for path in root.iterdir()}


def test_several_folders_write_where_the_command_was_typed_or_told(capsys: Capture) -> None:
    root = runs("x")
    folders = [str(path) for path in sorted(root.iterdir())]
    assert main(["compare", *folders]) == 0
    assert Path("compare.html").is_file()
    assert main(["compare", *folders, "--out", "new/place"]) == 0
    assert Path("new/place/compare.json").is_file()


def test_json_is_one_document_on_stdout(capsys: Capture) -> None:
    assert main(["compare", str(runs("x")), "--json", "--price", "1.5"]) == 0
    assert json.loads(capsys.readouterr().out)["configs"][0]["cost"] == pytest.approx(0.015)


def test_nothing_to_compare_is_refused_and_leaves_nothing(capsys: Capture) -> None:
    Path("empty").mkdir()
    assert main(["compare", "empty", "missing"]) == ExitCode.REFUSED
    err = capsys.readouterr().err
    assert "empty: holds no run of mpt" in err
    assert "missing: there is no such folder" in err
    write_run(Path("one"))
    assert main(["compare", "one"]) == ExitCode.REFUSED
    assert "is the only run: nothing to compare it with" in capsys.readouterr().err
    assert not list(Path().glob("*.html"))


def test_conclusions_that_may_not_be_drawn_are_refused_with_the_reason(capsys: Capture) -> None:
    write_run(Path("a"), "fp32")
    write_run(Path("b"), "bf16", batch=7)
    assert main(["compare", "a", "b"]) == ExitCode.REFUSED
    assert "data.batch_size: 7 here, 64 in the baseline\n  hint: --force" in capsys.readouterr().err
    assert not list(Path().glob("compare.*"))
    assert main(["compare", "a", "b", "--force"]) == ExitCode.FINISHED


@pytest.mark.parametrize(("offset", "code"), [(-0.0001, 0), (-0.05, 4)])
def test_ci_fails_by_the_verdict_against_a_golden_file(offset: float, code: int, capsys: Capture) -> None:
    main(["compare", str(runs("then"))])
    kept = Path("then/compare.json").rename("golden.json")
    assert main(["compare", str(runs("now", offset)), "--against", str(kept), "--fail-if", "worse"]) == code
    out, err = capsys.readouterr()
    assert "Against golden.json" in out
    assert ("--fail-if: worse" in err) == bool(code)


def test_ci_does_not_pass_when_a_configuration_is_missing(capsys: Capture) -> None:
    main(["compare", str(runs("then"))])
    for folder in Path("then").glob("bf16*"):
        folder.rename(Path(f"gone-{folder.name.replace(' ', '-')}"))
    code = main(["compare", "then", "--against", "then/compare.json", "--fail-if", "worse"])
    assert code == ExitCode.JOBS_FAILED
    assert "--fail-if: refused" in capsys.readouterr().err


def test_a_place_that_can_not_be_written_to_is_refused_before_any_work(capsys: Capture) -> None:
    Path("file").write_text("")
    assert main(["compare", str(runs("x")), "--out", "file/below"]) == ExitCode.REFUSED
    out, err = capsys.readouterr()
    assert re.search(r"--out: `file/below` can't be written: `.*/file` is no folder\n  hint: name another", err)
    assert not out


def test_a_disk_that_fills_while_files_are_written_is_a_fault_and_the_table_is_shown(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = runs("x")

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["compare", str(root), "--out", "there"]) == ExitCode.FAULT
    out, err = capsys.readouterr()
    assert "there/compare.html was not written: No space left on device" in err
    assert "equivalent" in out
    assert main(["compare", str(root)]) == ExitCode.FINISHED


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["x", "--margin", "0"], "--margin: got 0, want a number > 0"),
        (["x", "--margin", "a%"], "--margin: got `a`, want a number"),
        (["x", "--price", "nan"], "--price: got `nan`, want a number"),
        (["x", "--fail-if", "worst"], "--fail-if: got `worst`"),
        (["x", "--at", "first"], "invalid choice"),
        ([], "required: RUN_OR_SWEEP_DIR"),
        (["x", "--against", "none.json"], "none.json: can't be read"),
    ],
)
def test_wrong_flags_are_named(args: list[str], text: str, capsys: Capture) -> None:
    runs("x")
    assert main(["compare", *args]) == ExitCode.REFUSED
    assert text in capsys.readouterr().err


def test_a_run_whose_settings_nobody_knows_is_refused_by_that(capsys: Capture) -> None:
    write_run(Path("a"), "fp32")
    (write_run(Path("b"), "bf16") / "config.yaml").unlink()
    assert main(["compare", "a", "b"]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert "config.yaml of b is missing or can't be read: nobody knows what was run" in told
    assert "None" not in told


def test_lines_that_a_summary_counts_and_a_record_lacks_are_told(capsys: Capture) -> None:
    steps = write_run(Path("a"), summary={"steps": 60}) / "steps.jsonl"
    steps.write_bytes(b"".join(steps.read_bytes().splitlines(keepends=True)[:8]))
    assert main(["report", "a"]) == ExitCode.FINISHED
    assert "steps.jsonl has 7 of the 60 steps that summary.json counts: lines were lost" in capsys.readouterr().out
