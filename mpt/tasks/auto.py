"""The task that fits the data: classification for images, language modelling for tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpt import registry
from mpt.tasks._base import Task
from mpt.types import DataSpec

FITTING = {"images": "classification", "tokens": "language_modeling"}


def build(options: Mapping[str, Any], data: DataSpec) -> Task:
    """Options are those of the task that is taken."""
    task: Task = registry.load("tasks", FITTING[data.kind]).build(options, data)
    return task
