"""Runs one training in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpt.config.check import require
from mpt.config.compose import compose
from mpt.train.run import train
from tests.e2e._cli import document, lines

TINY = ("device=cpu", "data.limit=160", "data.batch_size=16", "model.width=8")
"""Ten batches in an epoch."""


class Done:
    """A run that ended with the exit code that was wanted, and its record."""

    def __init__(self, folder: Path, *words: str, code: int = 0) -> None:
        self.folder = folder
        got = train(require(compose([*words, f"run_dir={folder}"])), ["mpt", "train", *words])
        assert got == code, f"exit {got}, want {code}: {self.summary.get('reason')}"

    @property
    def summary(self) -> dict[str, Any]:
        return document(self.folder / "summary.json")

    @property
    def steps(self) -> list[dict[str, Any]]:
        return lines(self.folder / "steps.jsonl")

    @property
    def evals(self) -> list[dict[str, Any]]:
        return lines(self.folder / "evals.jsonl")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in lines(self.folder / "events.jsonl") if e["kind"] == kind]

    @property
    def audit(self) -> dict[str, Any]:
        return document(self.folder / "audit.json")

    @property
    def plan(self) -> dict[str, Any]:
        return document(self.folder / "plan.json")
