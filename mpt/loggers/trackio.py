"""trackio: kept on this machine unless its own environment variables name a server; `trackio show` opens it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpt.loggers import PROJECT, Logger, RunInfo

PACKAGE = "trackio"


def open_logger(run: RunInfo) -> Logger:
    import trackio

    opened: Any = trackio.init(
        project=PROJECT, name=f"{run.name}-{run.key}", config=dict(run.config), resume="allow", embed=False,
        auto_log_gpu=False, auto_log_cpu=False,
    )  # fmt: skip
    return _Trackio(opened)


class _Trackio:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, status: str) -> None:
        self._run.finish()
