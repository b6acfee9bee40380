"""`mpt report RUN_DIR`: the report in the terminal or as JSON, and report.md in the run folder."""

from __future__ import annotations

import sys
from pathlib import Path

from mpt.errors import ExitCode
from mpt.record.reader import dumps, read_run
from mpt.report.json import to_json
from mpt.report.markdown import to_markdown


def report(run_dir: str, as_json: bool) -> int:
    """The report of one run on stdout; exit code 0 whatever state the run is in.

    Raises: RecordError when the folder holds no run.
    """
    run = read_run(Path(run_dir))
    _write(run.path / "report.md", to_markdown(run))
    if as_json:
        print(dumps(to_json(run), indent=2))
        return ExitCode.FINISHED
    from rich.console import Console

    from mpt.report.text import render

    terminal = Console(markup=False, highlight=False, emoji=False)
    terminal.print(render(run))
    return ExitCode.FINISHED


def _write(path: Path, text: str) -> None:
    """`path` holds the text; a folder that can't be written to is told, and is no reason to show nothing."""
    temp = path.with_name(f".{path.name}.tmp")
    try:
        temp.write_text(text, encoding="utf-8", errors="replace")
        temp.replace(path)
    except OSError as error:
        print(f"{path} was not written: {error.strerror}", file=sys.stderr)
