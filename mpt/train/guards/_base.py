"""What every guard is: a look at each step's row, on the host, after it was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpt.config.schema import GuardConfig
from mpt.types import StepRow


def cause(row: StepRow) -> str:
    """Why a step was skipped: its forward was non-finite already, or only its gradients were."""
    return "nonfinite_loss" if row.loss - row.loss != 0 else "gradient_overflow"


@dataclass(frozen=True)
class Facts:
    """What guards know of the run. `floor` and `ceiling` are the scale's limits, None where it has none.

    `float16`: it is what is computed in, so that a wider format would help. `exhausted` asks the device whether the
    strategy itself gives up; `undone` is the number of updates that rollbacks have taken back. `limit` None: any number
    of skips in a row.
    """

    strategy: str
    changes: bool
    limit: int | None = None
    floor: float | None = None
    ceiling: float | None = None
    grows_by_interval: bool = False
    float16: bool = True
    exhausted: Callable[[], bool] = lambda: False
    undone: Callable[[], int] = lambda: 0


@dataclass(frozen=True)
class Alarm:
    """A guard's verdict: what happened, at which step the fault began, and what is to be done."""

    guard: str
    action: str
    step: int
    reason: str


class Guard:
    """`see` gives the step at which the fault began and a sentence, where there is one.

    All that it remembers lies in `memory`, in plain containers: a checkpoint holds it.
    """

    def __init__(self, cfg: GuardConfig, facts: Facts) -> None:
        self.cfg, self.facts = cfg, facts
        self.memory: dict[str, Any] = self.fresh()

    @classmethod
    def applies(cls, facts: Facts) -> bool:
        """Whether there is anything to watch in such a run."""
        return True

    def fresh(self) -> dict[str, Any]:
        """What is remembered before the first step."""
        return {}

    def see(self, row: StepRow) -> tuple[int, str] | None:
        raise NotImplementedError

    def rolled_back(self) -> None:
        """The run is back at an earlier state: what was seen since is no evidence any more."""
        self.memory = self.fresh()
