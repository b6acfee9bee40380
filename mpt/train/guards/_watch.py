"""All guards of one run over the rows that were read."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mpt.config.guard import GUARDS, action, returns
from mpt.config.schema import GuardConfig
from mpt.train.guards._base import Alarm, Facts, Guard, cause
from mpt.train.guards.skips import Skips
from mpt.types import StepRow

ENDING_STREAK = 5
"""Skips in a row, for non-finite losses, with which no run ends well: a single bad batch may be the last."""


class Watch:
    """The guards of a run that are not off. `state` is what an earlier process remembered."""

    def __init__(self, cfg: GuardConfig, facts: Facts, state: Mapping[str, Any]) -> None:
        self._guards: dict[str, tuple[str, Guard]] = {}
        for name in GUARDS:
            kind: type[Guard] = importlib.import_module(f"mpt.train.guards.{name}").GUARD
            does = action(cfg, name)
            if (name == "skips" or not _idle(name, does)) and kind.applies(facts):
                self._guards[name] = does, kind(cfg, facts)
        for name, (_, guard) in self._guards.items():
            guard.memory |= state.get(name, {})
        self.last: StepRow | None = None

    def judge(self, rows: Sequence[StepRow]) -> list[Alarm]:
        """The alarms of these rows, in their order; the last one may stop the run or roll it back, and nothing after
        its row is looked at."""
        alarms: list[Alarm] = []
        for row in rows:
            self.last = row
            for name, (does, guard) in self._guards.items():
                seen = guard.see(row)
                if seen is not None and not _idle(name, does):
                    alarms.append(Alarm(name, does, *seen))
                    if returns(name, does) or does == "stop":
                        return alarms
        return alarms

    def rolled_back(self) -> None:
        """The run is back at an earlier state."""
        for _, guard in self._guards.values():
            guard.rolled_back()

    def state(self) -> dict[str, Any]:
        """What all guards remember, in plain containers."""
        return {name: dict(guard.memory) for name, (_, guard) in self._guards.items()}

    def at_the_end(self, metrics: Mapping[str, float]) -> str | None:
        """Why a run that reached its length learned nothing all the same, or None."""
        row, skips = self.last, self._guards["skips"][1]  # which counts even where it is off
        assert isinstance(skips, Skips)
        if row is not None and row.update == 0:
            return skips.reason(row)
        if row is not None and skips.memory["streak"] >= ENDING_STREAK and cause(row) == "nonfinite_loss":
            return skips.reason(row)
        wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
        if wrong:
            return f"the last evaluation's {wrong[0]} is non-finite. Lower optimizer.lr, or look at the evaluation data"
        return None


def _idle(name: str, does: str) -> bool:
    """Whether nothing is left to do: what is non-finite was skipped by the device already."""
    return does == "off" or (name, does) == ("nonfinite", "skip")
