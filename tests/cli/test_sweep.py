"""Sweeps: every job is checked before the first starts, and one that fails does not stop the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mpt.train.run
from mpt.cli import main
from mpt.commands._sweep.folder import State, ended
from mpt.config.compose.sweep import plan_jobs
from mpt.config.schema import RunConfig
from mpt.errors import ConfigError, ExitCode, ModelError, Problem


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Trainer:
    """Stands in for training: notes what it was given, and ends each run as told for its precision."""

    def __init__(self, endings: dict[str, Any] | None = None) -> None:
        self.endings = endings or {}
        self.given: list[RunConfig] = []

    def __call__(self, cfg: RunConfig, argv: list[str]) -> int:
        self.given.append(cfg)
        ending = self.endings.get(cfg.precision.name, 0)
        if isinstance(ending, BaseException):
            raise ending
        return int(ending)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(**endings: Any) -> Trainer:
        made = Trainer(endings)
        monkeypatch.setattr(mpt.train.run, "train", made)
        return made

    return install


def rows(err: str) -> list[list[str]]:
    """The final table's lines, split at wide gaps."""
    lines = err.split("jobs ran")[1].split("\nnext: ")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines if line.strip()]


def test_comma_lists_multiply_out_in_hydras_order(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    seen = trainer()
    assert (
        main(["train", "-m", "--in-process", "precision=fp32,bf16", "seed=range(0,2)", "name=1e5"]) == ExitCode.FINISHED
    )
    assert [(c.precision.name, c.seed, c.name) for c in seen.given] == [
        *(("fp32", 0, "1e5"), ("fp32", 1, "1e5"), ("bf16", 0, "1e5"), ("bf16", 1, "1e5"))
    ]


def test_each_job_gets_its_own_folder_under_the_sweeps(trainer: Any, tmp_path: Path) -> None:
    seen = trainer()
    main(["train", "-m", "--in-process", "precision=fp32,bf16"])
    main(["train", "-m", "--in-process", "precision=fp32,bf16"])  # in the same second, as like as not
    folders = [Path(str(c.run_dir)) for c in seen.given]
    assert len(set(folders)) == 4
    assert [folder.name for folder in folders] == ["0", "1", "0", "1"]
    for folder in folders:
        assert folder.parent.parent.parent == tmp_path / "outputs" / "sweeps"
        assert (folder.parent / "sweep.json").is_file()


@pytest.mark.parametrize("word", ["model.kwargs.width=3,4", "model.kwargs={width: 3},{width: 4}"])
def test_keys_inside_a_mapping_are_swept(word: str, trainer: Any) -> None:
    seen = trainer()
    assert main(["train", "-m", "--in-process", "model=custom", "model.path=a:b", word]) == ExitCode.FINISHED
    assert [c.model.options["kwargs"] for c in seen.given] == [{"width": 3}, {"width": 4}]


def test_the_sweeps_folder_can_be_named(trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = trainer()
    assert main(["train", "--multirun", "--in-process", "seed=1,2", "hydra.sweep.dir=a=b, ü"]) == 0
    assert [c.run_dir for c in seen.given] == [str(tmp_path / "a=b, ü" / n) for n in "01"]
    assert capsys.readouterr().err.endswith(f"next: mpt compare '{tmp_path / 'a=b, ü'}'\n")


def test_a_named_folder_that_is_in_use_is_refused(
    trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old" / "0").mkdir(parents=True)
    trainer()
    assert main(["train", "-m", "--in-process", "seed=1,2", "hydra.sweep.dir=old"]) == ExitCode.REFUSED
    assert "hydra.sweep.dir: `old` is not empty" in capsys.readouterr().err
    assert main(["train", "-m", "--in-process", "seed=1,2", "hydra.sweep.dir=old", "resume=auto"]) == ExitCode.FINISHED


def test_a_failing_job_does_not_stop_the_others(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trainer(bf16=3, tf32=ModelError(Problem("model", "does not fit")), fp16=ZeroDivisionError("bug"))
    code = main(["train", "-m", "--in-process", "precision=fp32,bf16,tf32,fp16,bf16_true"])
    err = capsys.readouterr().err
    assert code == ExitCode.JOBS_FAILED
    assert [row[1:4] for row in rows(err)] == [
        ["precision=fp32", "finished", "0"],
        ["precision=bf16", "diverged", "3"],
        ["precision=tf32", "refused", "2"],
        ["precision=fp16", "bug in mpt", "1"],
        ["precision=bf16_true", "finished", "0"],
    ]
    assert "model: does not fit" in err
    assert "ZeroDivisionError: bug" in err


@pytest.mark.parametrize(
    ("ending", "code"), [(130, ExitCode.SIGINT), (143, ExitCode.SIGTERM), (KeyboardInterrupt(), ExitCode.SIGINT)]
)
def test_an_interrupt_ends_the_sweep(ending: Any, code: int, trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    seen = trainer(bf16=ending)
    assert main(["train", "-m", "--in-process", "precision=fp32,bf16,tf32"]) == code
    assert len(seen.given) == 2
    assert "2 of 3 jobs ran" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (["precision=fp32,bf61"], "precision: got `bf61` (in job 1: precision=bf61)\n  hint: did you mean `bf16`?"),
        (["precison=fp32,bf16"], "precison: no such key or group\n  hint: did you mean `precision`?"),
        (["precision=bf16,fp16", "scaling=dynamic"], "there is nothing to scale (in job 0: precision=bf16"),
        (["seed=1,2", "trainer.accumulate=0"], "trainer.accumulate: got 0, want a number ≥ 1\n"),
        (["seed=1,2", "run_dir=x"], "run_dir: has no place in a sweep"),
        (["seed=1,2", "hydra/launcher=nothing"], "launchers are joblib and submitit_slurm"),
        (["optimizer.lr=interval(0,1)"], "sweep over a list"),
        (["seed=1,2", "foo"], "foo: is no key=value"),
        (["seed=range(0,0)"], "makes no job: a range is empty"),
        (
            ["precision=fp16,"],
            "an empty place between its commas\n  hint: did you mean `precision=fp16`?",
        ),
        (["optimizer.betas={0.9,0.99}"], "a list is swept without braces: optimizer.betas=0.9,0.99"),
        (["optimizer.lr=logspace(1,2)"], "a list is swept: optimizer.lr=a,b"),
        (["seed=1,2", "hydra.sweep.dir=/dev/null/x"], "hydra.sweep.dir: `/dev/null/x` can't be written to"),
        (["seed=1,2", "hydra.sweep.subdir=x"], "hydra.sweep.subdir: got `x`, one folder for 2 jobs"),
        (["seed=1,2", "hydra.sweep.dri=x"], "hydra.sweep.dri=x: Key 'dri' not in 'SweepDir'"),
        (["seed=1,2", "hydra.verbose=[x"], "hydra.verbose=[x: "),
    ],
)
def test_a_sweep_with_a_mistake_starts_nothing(
    typed: list[str], text: str, trainer: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen = trainer()
    assert main(["train", "-m", "--in-process", *typed]) == ExitCode.REFUSED
    assert text in capsys.readouterr().err
    assert seen.given == []
    assert not any(tmp_path.iterdir())


def test_a_problem_of_every_job_is_told_once(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trainer()
    main(["train", "-m", "--in-process", "seed=1,2,3", "modle=x", "trainer.acumulate=3"])
    err = capsys.readouterr().err
    assert err.startswith("2 problems\n")
    assert err.count("modle") == 1


def test_a_sweep_goes_on_where_other_outputs_are(tmp_path: Path) -> None:
    (tmp_path / "outputs" / "2026-11-29" / "14-03-22_mine").mkdir(parents=True)
    assert [j.number for j in plan_jobs(["seed=1,2", "resume=auto"], None)] == [0, 1]
    (tmp_path / "old" / "1").mkdir(parents=True)
    (tmp_path / "old" / "1" / "steps.jsonl").touch()
    assert len(plan_jobs(["seed=1,2", "resume=auto", "hydra.sweep.dir=old"], None)) == 2
    (tmp_path / "old" / "0").mkdir()
    (tmp_path / "old" / "0" / "photo.jpg").touch()
    with pytest.raises(ConfigError, match=r"old/0` is not empty and holds no run \(in job 0: seed=1"):
        plan_jobs(["seed=1,2", "resume=auto", "hydra.sweep.dir=old"], None)


def test_one_folder_for_the_checkpoints_of_all_jobs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.dir: got `kept`, one folder for all jobs\n.*hydra.sweep.dir"):
        plan_jobs(["seed=1,2", "checkpoint.dir=kept"], None)


def test_paths_with_commas_are_no_sweep() -> None:
    (job,) = plan_jobs(["data.root=a,b"], None)
    assert job.config.data.root == "a,b"
    assert [j.config.name for j in plan_jobs(["name=007,1e5"], None)] == ["007", "1e5"]


def test_the_users_folder_takes_part_in_sweeps(trainer: Any, tmp_path: Path) -> None:
    (tmp_path / "own" / "schedule").mkdir(parents=True)
    (tmp_path / "own" / "schedule" / "mine.yaml").write_text("# Mine.\nname: exponential\ngamma: 0.5\n")
    seen = trainer()
    assert main(["train", "-m", "--in-process", "--config-dir", "own", "schedule=mine,cosine"]) == 0
    assert [c.schedule.name for c in seen.given] == ["exponential", "cosine"]


def test_fail_fast_starts_nothing_after_a_failure(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    seen = trainer(bf16=3)
    assert main(["train", "-m", "--in-process", "--fail-fast", "precision=fp32,bf16,tf32"]) == ExitCode.JOBS_FAILED
    assert [c.precision.name for c in seen.given] == ["fp32", "bf16"]
    assert "waiting" in capsys.readouterr().err


def test_going_on_runs_what_is_missing_or_failed_and_resumes_it(trainer: Any, tmp_path: Path) -> None:
    trainer(bf16=3)
    assert main(["train", "-m", "--in-process", "precision=fp32,bf16", "seed=1,2", "hydra.sweep.dir=s"]) == 4
    for number in (0, 1):
        (tmp_path / "s" / str(number)).mkdir()
        (tmp_path / "s" / str(number) / "DONE").write_text("done\n")
    again = trainer()
    assert main(["train", "-m", "--in-process", "--continue", "s"]) == ExitCode.FINISHED
    assert [(c.precision.name, c.seed, c.resume) for c in again.given] == [("bf16", 1, "auto"), ("bf16", 2, "auto")]


def test_a_job_that_finished_under_an_interrupt_is_finished(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def finishes(cfg: RunConfig, argv: list[str]) -> int:
        Path(str(cfg.run_dir)).mkdir(parents=True)
        (Path(str(cfg.run_dir)) / "DONE").write_text("done\n")
        raise KeyboardInterrupt

    monkeypatch.setattr(mpt.train.run, "train", finishes)
    assert main(["train", "-m", "--in-process", "seed=1,2", "hydra.sweep.dir=s"]) == ExitCode.SIGINT
    assert rows(capsys.readouterr().err)[0][1:4] == ["seed=1", "finished", "0"]
    state = tmp_path / "s" / "jobs" / "0.json"  # as left by a process that died before it could say so
    state.write_text(
        state.read_text().replace('"finished"', '"interrupted"').replace('"exit_code": 0', '"exit_code": 130')
    )
    again = trainer()
    assert main(["train", "-m", "--in-process", "--continue", "s"]) == ExitCode.FINISHED
    assert [c.seed for c in again.given] == [2]


def test_going_on_without_a_folder_takes_the_newest(trainer: Any) -> None:
    trainer(fp32=5)
    main(["train", "-m", "--in-process", "seed=1,2"])
    again = trainer()
    assert main(["sweep", "--in-process", "--continue"]) == ExitCode.FINISHED
    assert [c.seed for c in again.given] == [1, 2]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--continue"], "there is no sweep in outputs/sweeps"),
        (["--continue", "hydra.sweep.dir=x"], "x: is no sweep that can go on"),
        (["--continue", "s", "seed=1,2,3"], "s: has 2 jobs, of which these words make 2"),
        (["--cfg", "job"], "mpt sweep: shows no configuration"),
        (["--fail-fats", "seed=1,2"], "did you mean `--fail-fast`?"),
    ],
)
def test_a_sweep_that_can_not_go_on_says_why(
    args: list[str], text: str, trainer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer()
    main(["train", "-m", "--in-process", "seed=1,2", "hydra.sweep.dir=s"])
    capsys.readouterr()
    assert main(["sweep", *args]) == ExitCode.REFUSED
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("there", [True, False])
def test_what_is_no_sweep_is_not_gone_on_with(there: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if there:
        Path("sw").mkdir()
    assert main(["sweep", "--continue", "sw"]) == ExitCode.REFUSED
    assert ("sw: is no folder of a sweep" if there else "sw: there is no such folder") in capsys.readouterr().err


def test_a_glob_is_over_the_choices_of_its_group(trainer: Any) -> None:
    seen = trainer()
    assert main(["train", "-m", "--in-process", "precision=glob(mxfp*)"]) == ExitCode.FINISHED
    assert [c.precision.name for c in seen.given] == ["mxfp4", "mxfp6", "mxfp8"]


def test_a_job_whose_folder_is_taken_tells_its_own_reason(tmp_path: Path) -> None:
    state = State(1, "seed=2", "running", folder=str(tmp_path / "x"))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "DONE").write_text("3 steps\n")
    assert ended(state, ExitCode.REFUSED, "holds another run").reason == "holds another run"
    assert ended(state, ExitCode.FAULT, "died").reason == "3 steps"
