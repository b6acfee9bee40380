"""Rules."""

from __future__ import annotations

from typing import Any

from mpt.errors import Problem


def range_problems(values: dict[str, Any]) -> list[Problem]:
    return []
