"""Other people's trackers, given the numbers of the record: one file each, none required.

A file exports `PACKAGE` (what has to be installed) and `open_logger(run: RunInfo) -> Logger`. They are fed by
`_follow.following` from the run folder, in a thread of its own: nothing in the loop waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PROJECT = "mpt"
"""Project or experiment under which runs are filed, where a tracker has such a thing."""


@dataclass(frozen=True)
class RunInfo:
    """`config` has dotted keys and plain values; `key` is the same for a run and for what goes on with it."""

    folder: Path
    name: str
    key: str
    config: Mapping[str, Any]


class Logger(Protocol):
    """Takes finite numbers by name. Whatever it raises ends the logger, never the run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of one step."""

    def finish(self, status: str) -> None:
        """The run is over: done, failed, diverged or interrupted."""
