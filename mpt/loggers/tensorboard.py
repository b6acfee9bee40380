"""TensorBoard: event files in the run folder's `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpt.loggers import Logger, RunInfo

PACKAGE = "tensorboard"


def open_logger(run: RunInfo) -> Logger:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(run.folder / "tensorboard"))
    lines = "\n".join(f"    {key}: {value}" for key, value in run.config.items())
    writer.add_text("config", lines)
    return _TensorBoard(writer)


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()
