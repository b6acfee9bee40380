"""What is done about alarms: a warning, an end, or the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from mpt.checkpoint import Saver
from mpt.config.guard import returning, returns
from mpt.errors import ExitCode
from mpt.train.guards import Alarm, Watch
from mpt.train.guards._facts import facts
from mpt.train.progress import Ending
from mpt.train.rollback import roll_back
from mpt.train.state import Course
from mpt.train.tell import Teller
from mpt.types import StepRow


class Judge:
    """Asks the guards about each row, and does what their actions say. What it knows is in `course.progress`."""

    def __init__(self, course: Course, saver: Saver, teller: Teller) -> None:
        self._course, self._saver, self._teller = course, saver, teller
        cfg = course.run.cfg.guard
        self.may_return = bool(returning(cfg))
        self._watch = Watch(cfg, facts(course.run, course.history.totals), course.progress.guards)

    @property
    def waits(self) -> bool:
        """Whether the way back is decided but not due: nothing is evaluated or saved meanwhile."""
        return bool(self._course.progress.alarm)

    def ending(self, rows: Sequence[StepRow]) -> Ending | None:
        """How the run ends after these rows, if it does. All alarms are told."""
        if self.waits:
            return None
        for alarm in self._watch.judge(rows):
            self._teller.alarm(alarm)
            if alarm.action == "stop":
                return Ending("DIVERGED", ExitCode.DIVERGED, self._with_origin(alarm.reason, rows[-1]))
            if returns(alarm.guard, alarm.action):
                self._course.progress.alarm = asdict(alarm)
        return None

    def back(self, step: int) -> Ending | None:
        """The run is at an earlier update; an ending where that can't be. For a log point, while `waits`."""
        alarm = Alarm(**self._course.progress.alarm)
        done = roll_back(self._course, self._saver, alarm, step)
        if isinstance(done, str):
            return Ending("DIVERGED", ExitCode.DIVERGED, done)
        self._teller.rolled_back(done, alarm.reason)
        self._watch.rolled_back()
        return None

    def remember(self, step: int, *, extra: bool) -> list[int]:
        """Before a save: what guards know joins what is saved. Gives the steps whose checkpoints have to stay.

        `extra`: it is saved only because the run ends here.
        """
        progress = self._course.progress
        progress.guards = self._watch.state()
        if self.may_return and not extra:
            progress.returns = [*progress.returns, step][-self._course.run.cfg.checkpoint.keep :]
        return progress.returns

    def at_the_end(self, metrics: Mapping[str, float]) -> str | None:
        """Why a run that reached its length learned nothing all the same, or None."""
        reason, last = self._watch.at_the_end(metrics), self._watch.last
        return reason if reason is None or last is None else self._with_origin(reason, last)

    def _with_origin(self, reason: str, last: StepRow) -> str:
        """The reason, and before what helps in general the op that is behind it, where the last row was skipped."""
        origin = self._teller.origin(last)
        what, _, general = reason.partition(". ")
        return f"{what}; {origin}. Else: {general[:1].lower()}{general[1:]}" if origin else reason
