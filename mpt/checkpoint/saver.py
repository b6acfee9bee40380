"""Saves beside the training: the loop waits for a copy in memory, a thread for the disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from mpt.checkpoint.plain import check_plain, size_bytes
from mpt.checkpoint.snapshot import Snapshots, fits, on_cpu
from mpt.checkpoint.store import CheckpointStore
from mpt.errors import RunFault


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is on disk; `write_s` is what serialising and syncing took."""

    step: int
    update: int
    path: Path
    write_s: float


@dataclass
class SaveCosts:
    """What saves have cost: seconds that the caller waited, seconds of writing, and the copy's size."""

    count: int = 0
    stall_s: float = 0.0
    write_s: float = 0.0
    snapshot_bytes: int = 0


class _Job(threading.Thread):
    """One save; `error` is what stopped it, `ended` is set last.

    Nobody joins it, nor asks whether it lives: a thread counts as ended once a signal's handler has raised in who
    joins it (threading._wait_for_tstate_lock of Python ≤ 3.12).
    """

    def __init__(self, work: Callable[[], Saved]) -> None:
        super().__init__(name="checkpoint", daemon=True)  # a process that must end at once does not wait for it
        self._work: Callable[[], Saved] | None = work
        self.saved: Saved | None = None
        self.error: Exception | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        """The copy of the state goes with the end of the work, not with that of the job."""
        work, self._work = self._work, None
        assert work is not None, "a job runs once"
        try:
            self.saved = work()
        except Exception as error:  # whatever went wrong is raised in the thread that waits for the save
            self.error = error
        finally:
            self.ended.set()


class Saver:
    """Saves to `store`, at most one at a time, older checkpoints never at risk.

    `background` False writes before `save` returns, without a copy. `sync` brings the record up to the
    checkpoint's offset to disk, before the checkpoint that relies on it. `told` is called in the caller's thread,
    for each checkpoint that is on disk.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        background: bool,
        sync: Callable[[], object] = lambda: None,
        told: Callable[[Saved], object] = lambda saved: None,
    ) -> None:
        self._store, self._background = store, background
        self._sync, self._told = sync, told
        self._snapshots = Snapshots()
        self._job: _Job | None = None
        self._best: int | None = None
        self.costs = SaveCosts()

    def save(
        self, state: Mapping[str, Any], *, step: int, update: int, last: bool = False, keeping: Sequence[int] = ()
    ) -> None:
        """The state as it is now becomes the newest checkpoint, soon; with `last`, before this returns.

        A save that is still under way is waited for first.
        Raises: RunFault for the disk that failed, now or in the save before; TypeError for state that is not plain.
        """
        since_s = time.perf_counter()
        self.wait()
        check_plain(state)
        size = size_bytes(state)
        copied = self._background and not last and fits(size)
        host, arrive = self._snapshots.take(state, copied=copied)
        if copied and on_cpu(state):
            self.costs.snapshot_bytes = max(self.costs.snapshot_bytes, size)
        job = self._job = _Job(partial(self._written, host, arrive, step, update, tuple(keeping)))
        if copied:
            job.start()
        else:
            job.run()
            self.wait()
        self.costs.stall_s += time.perf_counter() - since_s

    def mark_best(self, update: int) -> None:
        """The checkpoint of that update is kept until another is marked, from when it is on disk. Raises: RunFault."""
        if self._job is None:
            self._store.mark_best(update)
        else:
            self._best = update

    def of_steps(self, steps: Sequence[int]) -> Path | None:
        """The store's, once no save is under way."""
        self.wait()
        return self._store.of_steps(steps)

    def forget_after(self, step: int) -> list[str]:
        """The store's, once no save is under way."""
        self.wait()
        return self._store.forget_after(step)

    def keep_best(self, update: int) -> bool:
        """The checkpoint of that update is the best once more, if it is still there. Raises: RunFault."""
        self.wait()
        there = self._store.holds(update)
        if there:
            self._store.mark_best(update)
        return there

    def poll(self) -> None:
        """Take note of a save that has ended, without waiting. Raises: RunFault where it failed."""
        if self._job is not None and self._job.ended.is_set():
            self._reap()

    def wait(self) -> None:
        """No save is under way any more. Raises: RunFault where it failed."""
        if self._job is not None:
            self._job.ended.wait()
            self._reap()

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A save that is under way is finished, but where someone asked to stop at once."""
        if kind is None:
            self.wait()
        elif not issubclass(kind, KeyboardInterrupt):
            with suppress(RunFault):  # what ended the run is told instead
                self.wait()

    def _written(
        self, state: Any, arrive: Callable[[], object], step: int, update: int, keeping: Sequence[int]
    ) -> Saved:
        since_s = time.perf_counter()
        arrive()
        self._sync()
        path = self._store.save(state, step=step, update=update, keeping=keeping)
        return Saved(step, update, path, time.perf_counter() - since_s)

    def _reap(self) -> None:
        job, self._job = self._job, None
        best, self._best = self._best, None
        assert job is not None, "there is a job to reap"
        if job.error is not None:
            raise job.error
        assert job.saved is not None, "a save without an error has a result"
        if best is not None:
            self._store.mark_best(best)
        self.costs.count += 1
        self.costs.write_s += job.saved.write_s
        self._told(job.saved)
