"""What a machine can do to a run, and what the user then reads; names carry the field report's or promise's id."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from mpt.checkpoint import load
from mpt.cli import main
from mpt.config.check import require
from mpt.config.compose import compose
from mpt.errors import ModelError
from mpt.record.lines import Lines
from mpt.train.run import train
from tests.e2e._cli import ENV, document, lines, mpt, start
from tests.e2e._run import TINY, Done
from tests.e2e.test_resume import assert_equal_runs
from tests.e2e.test_signals import wait_for_steps

LONG = (*TINY, "trainer.max_steps=400", "trainer.log_every=5", "checkpoint.every=20")


def test_f8_a_disk_that_fills_up_ends_the_run_by_name_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY, "trainer.max_steps=40", "trainer.log_every=5", "checkpoint.every=5", "checkpoint.keep=9")
    whole = Done(tmp_path / "whole", *words)
    real, count = os.fsync, iter(range(10_000))

    def full(fd: int) -> None:
        if next(count) > 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    code = train(require(compose([*words, f"run_dir={tmp_path / 'r'}"])), ["mpt", "train"])
    monkeypatch.undo()
    assert code == 5
    assert "no space left on device" in capfd.readouterr().err.lower()  # the record could not be written any more
    assert load(tmp_path / "r")["history"]["step"] >= 5
    Done(tmp_path / "r", *words, "resume=auto")
    assert_equal_runs(tmp_path / "r", whole.folder)


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_an_output_folder_that_vanishes_ends_the_run_by_name_and_is_not_made_anew(how: str, tmp_path: Path) -> None:
    process = start("train", *LONG, "trainer.max_steps=100000", "run_dir=r", cwd=tmp_path)
    wait_for_steps(tmp_path / "r", 60)  # two saves on, that of step 20 was waited for
    if how == "deleted":
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
        shutil.rmtree(tmp_path / "r", ignore_errors=True)  # a file that came while the first was under way
    else:
        (tmp_path / "r").rename(tmp_path / "elsewhere")
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 5, output
    assert "Traceback" not in output
    assert re.search(r"deleted while the run was going|moved or deleted", output), output
    if how == "moved":
        assert not (tmp_path / "r").exists()
        assert load(tmp_path / "elsewhere")["history"]["step"] >= 20


def test_a_read_only_folder_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["train", *TINY, f"run_dir={tmp_path / 'r'}"]) == 2
    assert "can't be written to" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_folder_that_becomes_read_only_is_a_fault_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Lines._write

    def refuses(self: Lines, data: bytes) -> None:
        if b'"step":2' in data or b'"step": 2' in data:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.path))
        append(self, data)

    monkeypatch.setattr(Lines, "_write", refuses)
    run = Done(tmp_path / "r", *TINY, "trainer.max_steps=40", "trainer.log_every=1", code=5)
    assert "mounted read-only" in run.summary["reason"]


STREAMED = (
    "import os, torch\n"
    "from torch.utils.data import Dataset\n"
    "class Slow(Dataset):\n"
    "    def __len__(self):\n"
    "        return 320\n"
    "    def __getitem__(self, i):\n"
    "        import time; time.sleep(0.002)\n"
    "        return torch.randn(1, 8, 8), i % 10\n"
    "def make():\n"
    "    return {'train': Slow(), 'eval': Slow(), 'classes': 10}\n"
)


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            found += [int(stat.parent.name)] * (int(parent) == pid)
    return found


def streaming(folder: Path) -> tuple[str, ...]:
    (folder / "streamed.py").write_text(STREAMED)
    words = ("train", "data=custom", "data.path=streamed.py:make", "data.workers=2", "device=cpu", "model.width=8")
    return (*words, "data.batch_size=16", "trainer.max_steps=2000", "trainer.log_every=1", "checkpoint.every=2")


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_a_worker_that_the_kernel_kills_ends_the_run_by_name_and_leaves_no_orphan(tmp_path: Path) -> None:
    process = start(*streaming(tmp_path), "run_dir=r", cwd=tmp_path)
    wait_for_steps(tmp_path / "r", 4)
    workers = children(process.pid)
    assert len(workers) >= 2
    os.kill(workers[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 5, output
    assert "data.workers=0" in document(tmp_path / "r" / "summary.json")["reason"]
    assert alive(workers) == []
    assert load(tmp_path / "r")["history"]["step"] >= 2


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_f9_r14_workers_end_with_their_run(number: signal.Signals, tmp_path: Path) -> None:
    process = start(*streaming(tmp_path), "run_dir=r", cwd=tmp_path)
    wait_for_steps(tmp_path / "r", 4)
    workers = children(process.pid)
    process.send_signal(number)
    process.communicate(timeout=60)
    until = time.monotonic() + 30
    while alive(workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert alive(workers) == []
    assert process.returncode == (143 if number is signal.SIGTERM else -signal.SIGKILL)


def test_r22_a_clock_that_jumps_moves_no_time_and_no_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, jumps = time.time, iter(range(0, 10**9, 86_400))
    monkeypatch.setattr(time, "time", lambda: real() - next(jumps))  # a day back at each look
    run = Done(tmp_path / "r", *TINY, "trainer.max_steps=20", "trainer.max_time_s=3600")
    assert run.summary["steps"] == 20
    assert all(row["time_s"] >= 0 for row in run.steps)
    assert 0 <= run.summary["time_s"]["train"] <= run.summary["time_s"]["total"] < 3600


WALL = {"record/reader.py", "loggers/mlflow.py", "commands/_sweep/job.py", "commands/_sweep/folder.py"}
"""Ages of files, stamps for a tracker, and a sweep that goes on after a restart, which no other clock outlives."""


def test_no_time_of_a_run_is_measured_by_the_clock_on_the_wall() -> None:
    root = Path(sys.modules["mpt"].__file__ or "").parent
    files = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if "time.time(" in path.read_text()}
    assert files == WALL


def test_g8_h2_the_last_lines_say_what_was_reached_and_what_to_type_next(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = Done(tmp_path / "my run", *TINY, "trainer.max_steps=4")
    told = capfd.readouterr().err.splitlines()[-4:]
    assert told[0].startswith("done: 4 steps")
    assert "best accuracy" in told[1]
    assert told[2] == f"record: {done.folder}"
    assert told[3] == f"next: mpt report '{done.folder}'"


def test_a_run_that_was_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    process = start("train", *LONG, "trainer.max_steps=100000", "run_dir=r", cwd=tmp_path)
    wait_for_steps(tmp_path / "r", 10)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "SIGINT: saving, then stopping" in output
    last = output.splitlines()[-1]
    assert last.startswith("next: mpt train device=cpu ")
    assert last.endswith("run_dir=r resume=auto")


def test_i1_unreadable_samples_are_named_in_the_record_and_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    for part, name, i in [(p, c, i) for p in ("train", "val") for c in "ab" for i in range(4)]:
        (tmp_path / "d" / part / name).mkdir(parents=True, exist_ok=True)
        Image.new("L" if name == "a" else "RGB", (16, 16), i * 60).save(tmp_path / "d" / part / name / f"{i}.png")
    broken = tmp_path / "d" / "train" / "b" / "2.png"
    broken.write_bytes(b"\x89PNG")
    words = ("data=image_folder", f"data.root={tmp_path / 'd'}", "data.image_size=16", "data.on_error=skip")
    run = Done(tmp_path / "r", *words, "device=cpu", "model.width=8", "data.batch_size=4", "trainer.max_epochs=2")
    assert run.summary["unreadable"] == [str(broken)]
    assert run.summary["converted_samples"] == {"L converted to RGB": 8}
    told = capfd.readouterr().err
    assert f"1 sample could not be read: {broken}" in told
    assert "converted samples: 8 L converted to RGB" in told


def test_a_fault_inside_torch_names_the_module_where_no_line_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "narrow.py").write_text(
        "from torch import nn\n"
        "def make(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(63, num_classes))\n"
    )
    with pytest.raises(ModelError, match=r"raised in module `1` \(Linear\)"):
        Done(tmp_path / "r", *TINY[:-1], "model=custom", f"model.path={tmp_path / 'narrow.py'}:make")


def test_one_sample_left_over_never_meets_batch_norm_alone(tmp_path: Path) -> None:
    (tmp_path / "normed.py").write_text(
        "from torch import nn\n"
        "def make(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, num_classes))\n"
    )
    words = ("model=custom", f"model.path={tmp_path / 'normed.py'}:make", "device=cpu", "trainer.max_epochs=2")
    run = Done(tmp_path / "r", *words, "data.limit=65", "data.batch_size=16")
    assert {row["samples"] for row in run.steps} == {16}
    assert torch.isfinite(load(run.folder)["model"]["2.running_var"]).all()


def test_g2_paths_with_every_odd_character_are_gone_on_from(tmp_path: Path) -> None:
    name = "odd, =name ü%#|"
    words = ("train", *TINY, "trainer.max_steps=4", "checkpoint.every=2")
    mpt(*words, f"run_dir={name}", cwd=tmp_path)
    (tmp_path / name / "DONE").unlink()
    again = mpt(*words, f"run_dir={name}", "resume=auto", cwd=tmp_path)
    assert "goes on after step 4" in again.stderr
    assert len(lines(tmp_path / name / "steps.jsonl")) == 4


@pytest.mark.parametrize("words", [("train", "--info"), ("list", "precisions"), ("report", "r")], ids=" ".join)
def test_a_reader_that_goes_away_ends_any_output_without_a_traceback(words: tuple[str, ...], tmp_path: Path) -> None:
    if words[0] == "report":
        Done(tmp_path / "r", *TINY, "trainer.max_steps=1")
    shell = f"{sys.executable} -m mpt {' '.join(words)} | head -1 >/dev/null"
    done = subprocess.run(shell, shell=True, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert "Logging error" not in done.stderr


def test_piped_reports_have_no_spaces_at_the_ends_of_lines(tmp_path: Path) -> None:
    Done(tmp_path / "r", *TINY, "trainer.max_steps=1")
    told = mpt("report", "r", cwd=tmp_path).stdout
    assert "Precision" in told
    assert not [line for line in told.splitlines() if line != line.rstrip()]


class Bomb:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_r13_a_checkpoint_from_elsewhere_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mpt.checkpoint.marker import MARKER, STATE, Marker, digest

    run = Done(tmp_path / "r", *TINY, "trainer.max_steps=2")
    folder = max((run.folder / "checkpoints").glob("update-*"))
    torch.save({"x": Bomb(tmp_path / "exploded")}, folder / STATE)
    size = (folder / STATE).stat().st_size
    (folder / MARKER).write_text(Marker(2, 2, size, digest(folder / STATE)).dumps())
    for words in (["eval", str(run.folder)], ["checkpoint", "show", str(folder)], ["train", f"init_from={folder}"]):
        assert main(words) == 2
        assert "can't be loaded" in capsys.readouterr().err
    assert not (tmp_path / "exploded").exists()


def test_a_configuration_from_elsewhere_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Done(tmp_path / "r", *TINY, "trainer.max_steps=1")
    config = run.folder / "config.yaml"
    config.write_text(config.read_text() + f"\nbomb: !!python/object/apply:os.mkdir ['{tmp_path / 'exploded'}']\n")
    assert main(["eval", str(run.folder)]) == 2
    assert main(["report", str(run.folder)]) in (0, 2)
    capsys.readouterr()
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "evil.yaml").write_text(
        f"_target_: os.mkdir\npath: {tmp_path / 'exploded'}\nname: mlp\n"
    )
    main(["train", "--config-dir", str(tmp_path / "own"), "model=evil", f"run_dir={tmp_path / 's'}", *TINY[:-1]])
    assert not (tmp_path / "exploded").exists()


def test_the_doors_to_the_users_code_are_named_in_the_first_lines(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nimport torch\n"
        "def net(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
        "def data():\n"
        "    x, y = torch.randn(64, 1, 8, 8), torch.arange(64) % 10\n"
        "    return {'train': (x, y), 'eval': (x, y)}\n"
    )
    (tmp_path / "plug.py").write_text("")
    words = ("model=custom", "model.path=mine.py:net", "data=custom", "data.path=mine.py:data", "plugins=[plug]")
    told = mpt("train", *words, "trainer.max_steps=1", "device=cpu", cwd=tmp_path).stderr
    first = told.split("1/1 steps")[0]
    for door in ("plugins plug", "model.path mine.py:net", "data.path mine.py:data"):
        assert f"runs code of yours: {door}" in first
