"""Where output goes that nobody takes, and errors that say nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpt.cli import main
from mpt.errors import ConfigError, ExitCode, first_line
from mpt.report.files import require_writable, write_reports
from tests.e2e._cli import ENV


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = f'"{sys.executable}" -m mpt {line}'
    return subprocess.run(["sh", "-c", command], env=ENV, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stdout_is_no_bug(closed: str) -> None:
    done = shell(f"list gpus {closed}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
def test_a_full_disk_behind_stdout_is_a_fault_and_told_in_a_line() -> None:
    done = shell("list gpus > /dev/full")
    assert (done.returncode, done.stderr) == (5, "can't write: No space left on device\n")


@pytest.mark.parametrize(
    ("error", "line"), [(MemoryError(), "MemoryError"), (ValueError("\n"), "ValueError"), (ValueError("a\nb"), "a")]
)
def test_an_error_that_says_nothing_is_told_by_its_kind(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_a_place_for_a_page_is_asked_for_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "closed").mkdir(mode=0o500)
    wrong = {"": "is a folder, want a file", "file/page.html": "is no folder"}
    if os.geteuid():  # root may write everywhere
        wrong["closed/new/page.html"] = "no permission in"
    for name, what in wrong.items():
        with pytest.raises(ConfigError, match=what) as refused:
            require_writable("--html", tmp_path / name, folder=False)
        assert str(tmp_path / name) in str(refused.value)
    for name in ("new/page.html", "file"):
        require_writable("--html", tmp_path / name, folder=False)
    require_writable("--html", Path("/dev/null"), folder=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["closed", "file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_a_plans_page_that_can_not_be_written_is_refused_before_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("mpt.commands.plan._lines", lambda *_: pytest.fail("the plan was made"))
    assert main(["plan", "model=mlp", "--html", str(tmp_path / "file" / "page.html")]) == ExitCode.REFUSED
    assert capsys.readouterr().err.startswith(f"--html: `{tmp_path / 'file' / 'page.html'}` can't be written")


def test_a_report_is_written_to_a_device_and_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "page.html").symlink_to("/dev/null")
    write_reports(tmp_path, {"page.html": "text"})
    assert (tmp_path / "page.html").is_symlink()
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
