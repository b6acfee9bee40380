"""Losses and metrics, one file a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpt import registry
from mpt.config.schema import TaskConfig
from mpt.types import DataSpec

if TYPE_CHECKING:
    from mpt.tasks._base import Task


def build_task(cfg: TaskConfig, data: DataSpec) -> Task:
    """The task that `cfg` names, for these data."""
    task: Task = registry.load("tasks", cfg.name).build(cfg.options, data)
    return task
