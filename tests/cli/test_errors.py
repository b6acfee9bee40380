"""What people see when a command can't be done: text, exit code, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mpt
import mpt.commands
from mpt.cli import LATER, main, names
from mpt.errors import ConfigError, ExitCode, Problem

PYTHON = sys.executable
# The tests change folder: a package that is imported from the checkout is found from there too.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mpt.__file__).parents[1])}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("precison=bf16", "precison: no such key or group\n  hint: did you mean `precision`?\n"),
        ("precision=bf61", "precision: got `bf61`\n  hint: did you mean `bf16`?\n"),
        ("modle=x", "modle: no such key or group\n  hint: did you mean `model`?\n"),
        ("trainer.max_stepz=3", "trainer.max_stepz: no such key\n  hint: did you mean `trainer.max_steps`?\n"),
    ],
)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_typo_gets_its_correction_and_exit_2(
    command: str, typed: str, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(capsys, command, typed) == (ExitCode.REFUSED, "", text)
    assert not any(tmp_path.iterdir())


def test_several_problems_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "precison=bf16", "trainer.max_stepz=3", "optimizer.lr=-1", "device=gpu")
    assert code == ExitCode.REFUSED
    assert err.startswith("3 problems\n\nprecison: ")
    assert "optimizer.lr: got -1, want a number > 0" in err


def test_cross_field_problems_are_told_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "train", "precision=bf16", "scaling=dynamic", "device=gpu", "schedule.warmup=-1")
    assert (code, out) == (ExitCode.REFUSED, "")
    assert err.startswith("3 problems\n\n")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["tran"], "mpt tran: no such command\n  hint: did you mean `mpt train`?"),
        (["precision=bf16"], "did you mean `mpt train precision=bf16`?"),
        (["--precision"], "did you mean `mpt train --precision`?"),
        (["train", "--precision", "bf16"], "settings are typed without dashes: precision=…"),
        (["train", "--multi"], "did you mean `--multirun`?"),
        (
            ["train", "-precision=bf16"],
            "-precision: no such flag\n  hint: settings are typed without dashes: precision=bf16",
        ),
        (["train", "-model=mlp"], "typed without dashes: model=mlp"),
        (["train", "-m=precision"], "-m: no such flag"),
        (["train", "--continue"], "--continue: does nothing here\n  hint: a run goes on with run_dir=… resume=auto"),
        (["train", "--fail-fast", "--in-process"], "does nothing here\n  hint: acts in a sweep"),
        (["train", "--resolve"], "--resolve: does nothing here"),
        (["train", "--package", "model"], "--package: does nothing here"),
        (["train", "precision.layers={match: x}"], "hint: it is a list: precision.layers=[{match: x}]"),
        (["train", "model=custom", "model.kwargs=[1]"], "hint: it is a mapping: model.kwargs={key: value}"),
        (["train", "precision=[fp16,bf16]"], "several are a sweep: -m precision=fp16,bf16"),
        (["train", "precision:bf16"], "did you mean `precision=bf16`?"),
        (["train", "precision==bf16"], "precision: has two `=`\n  hint: did you mean `precision=bf16`?"),
        (
            ["train", "trainer/max_steps=3"],
            "a slash is for groups, a key has dots\n  hint: did you mean `trainer.max_steps`?",
        ),
        (["train", "model", "=", "mlp"], "settings are typed key=value, without spaces"),
        (["train", "--config-name", "x"], "--config-dir DIR recipe=NAME"),
        (["train", "-m", "seed=1,2", "--cfg", "job"], "`1,2`: that is several jobs, and one can be shown"),
        (["train", "--cfg", "jobs"], "invalid choice: 'jobs'"),
        (["train", "--config-dir", "nothing"], "`nothing` is no folder"),
        (["train", "hydra.run.dir=x"], "the run's folder is run_dir=…"),
        (["plan", "--multirun"], "no such flag"),
        (["list", "model"], "did you mean `models`?"),
        (["list", "models", "data"], "want one kind"),
        (["eval"], "wants the folder of a run"),
        (["eval", "run", "precision=bf16"], "or in fp32\n  hint: trainer.eval_precision=fp32"),
        (["eval", "run", "precision.name=bf16"], "or in fp32\n  hint: trainer.eval_precision=fp32"),
        (["eval", "run", "model=gpt"], "model: a run is evaluated with the model that it was trained with\n  hint: "),
        (["eval", "run", "data=cifar10"], "hint: data.root=…"),
        (["eval", "run", "optimizer.name=sgd"], "optimizer.name: a run is evaluated with the optimizer"),
        (["eval", "run", "task.choice=x"], "task.choice: a run is evaluated with the task"),
        (["eval", "run", "fp32"], "`fp32` is no key=value"),
        (["eval", "run", "--checkpoint"], "eval: argument --checkpoint: expected one argument\n  hint: `mpt eval"),
        (["eval", "run", "--checkpint=x"], "--checkpint: no such flag\n  hint: did you mean `--checkpoint`?"),
        (["report"], "wants the folder of one run"),
        (["report", "a", "b"], "wants the folder of one run"),
        (["doctor", "cpu"], "mpt doctor cpu: is not understood"),
        *(([name], f"mpt {name}: is not in this version\n  hint: ") for name in LATER),
    ],
)
def test_a_wrong_command_line_gets_a_next_move(
    args: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = run(capsys, *args)
    assert (code, out) == (ExitCode.REFUSED, "")
    assert text in err
    assert "Traceback" not in err
    assert not any(tmp_path.iterdir())


def test_no_command_at_all_shows_the_overview_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (ExitCode.REFUSED, "")
    assert "usage: mpt COMMAND" in err


def test_the_overview_names_every_command_that_works_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == ExitCode.FINISHED
    files = {path.stem for path in Path(mpt.commands.__file__).parent.glob("[!_]*.py")}
    assert len(files) >= 7
    assert set(names()) == files
    assert not files & set(LATER)
    assert names()[0] == "train"
    listed = [line.split()[0] for line in out.split("\n\n")[2].splitlines()]
    assert listed == names()


@pytest.mark.parametrize("command", [name for name in names() if name != "train"])
def test_every_command_has_a_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == ExitCode.FINISHED
    assert out.startswith(f"mpt {command} ")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (ExitCode.FINISHED, f"mpt {mpt.__version__}\n", "")


def test_a_bug_shows_its_traceback_and_asks_for_a_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpt.commands.list.run", lambda args: 1 // 0)
    code, _, err = run(capsys, "list", "models")
    assert code == ExitCode.BUG
    assert "ZeroDivisionError" in err
    assert "please report it" in err


def test_ctrl_c_before_a_run_started_exits_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(args: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("mpt.commands.list.run", interrupted)
    code, _, err = run(capsys, "list", "models")
    assert code == ExitCode.SIGINT
    assert "Traceback" not in err


WATCHED = """
import sys
from mpt.cli import main
code = main(sys.argv[1:])
print(code, *sorted(m for m in ("torch", "hydra", "omegaconf", "rich", "numpy") if m in sys.modules), file=sys.stderr)
"""


def imported(*args: str) -> list[str]:
    """Exit code and heavy modules in a fresh process after a command line."""
    done = subprocess.run([PYTHON, "-c", WATCHED, *args], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    return done.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["train", "--multi"], ["tran"], ["list", "--help"]])
def test_an_overview_needs_nothing_heavy(args: list[str]) -> None:
    assert imported(*args)[1:] == []


@pytest.mark.parametrize(
    "args",
    [
        ["train", "precison=bf16", "modle=x"],
        ["train", "precision=bf16", "scaling=dynamic", "device=gpu", "data=image_folder"],
        ["train", "-m", "precision=bf16,fp16", "scaling=dynamic"],
        ["train", "--cfg", "job"],
    ],
)
def test_configuration_errors_and_views_import_no_torch(args: list[str]) -> None:
    assert "torch" not in imported(*args)


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [PYTHON, "-m", "mpt", "train", "--cfg", "job"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert err == ""
    assert process.returncode == 141


def test_problems_with_one_hint_share_it() -> None:
    same = [Problem(key, "is wrong", "give another") for key in ("a", "b")]
    error = ConfigError(*same, Problem("c", "is odd"), Problem("d", "is odd"))
    assert str(error) == "4 problems\n\na: is wrong\nb: is wrong\n  hint: give another\n\nc: is odd\n\nd: is odd"


@pytest.mark.parametrize("word", ["-pmodel", "-cjob", "-mi"])
def test_a_word_with_one_dash_is_never_taken_apart(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", word)
    assert code == ExitCode.REFUSED
    assert f"{word}: no such flag" in err
