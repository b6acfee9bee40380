"""Row 13: how long `mpt --help` takes, in fresh processes."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from _cells import Cell, value
from _measure import Effort, interleaved, process_s
from _row import main

LIMIT_S = 0.15


def program() -> list[str]:
    """The installed `mpt` beside this interpreter, or `python -m mpt` where it is not installed."""
    installed = Path(sys.executable).with_name("mpt")
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "mpt"]


def measure(effort: Effort) -> list[Cell]:
    """`mpt --help`, and beside it an interpreter that does nothing."""
    commands = {"mpt": [*program(), "--help"], "python": [sys.executable, "-c", "pass"]}
    found = interleaved({name: partial(process_s, command) for name, command in commands.items()}, effort)
    told = " ".join(Path(word).name for word in commands["mpt"])
    return [
        value(13, "help", found["mpt"], LIMIT_S, f"wall time of `{told}`, from start to exit", unit="s"),
        value(13, "interpreter", found["python"], None, "wall time of `python -c pass`, for scale", unit="s"),
    ]


if __name__ == "__main__":
    main(measure, __doc__, repeats=20)
