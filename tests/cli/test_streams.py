"""Where output goes that nobody takes, and errors that say nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mpt.errors import first_line
from mpt.report.files import write_reports
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


def test_a_report_is_written_to_a_device_and_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "page.html").symlink_to("/dev/null")
    write_reports(tmp_path, {"page.html": "text"})
    assert (tmp_path / "page.html").is_symlink()
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
