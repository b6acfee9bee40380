"""torch's DataLoader, with its workers shielded from signals, its errors explained, and an end that is an end."""

from __future__ import annotations

import atexit
import multiprocessing
import re
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from mpt.data._shm import PREFETCH
from mpt.data._stacks import Stacks, show_stack_on_request
from mpt.data._threads import TIMEOUT_S, ThreadFeed
from mpt.errors import Problem, RunFault

_HINT = "a worker is stuck; data.workers=0 shows where"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class FeedSettings:
    """`workers` 0 reads in the training thread; `pin` copies batches to page-locked memory for CUDA."""

    workers: int
    pin: bool
    threads: bool = False


class Source(Protocol[T_co]):
    """Batches in order, again from the start at each iteration; workers live until `close`."""

    def __iter__(self) -> Iterator[T_co]: ...

    def close(self) -> None: ...


def make_feed(
    dataset: Dataset[Any],
    keys: Callable[[], Iterator[list[Any]]],
    pack: Callable[[list[Any]], T],
    settings: FeedSettings,
    name: Callable[[Any], str] = str,
) -> Source[T]:
    """Reading by threads, by processes, or by whoever asks; `name` is what a key is called in messages."""
    if settings.threads and settings.workers > 0:
        return ThreadFeed(dataset, keys, pack, settings.workers, pin=settings.pin, name=name)
    return Feed(dataset, keys, pack, settings, name)


class Feed(Generic[T]):
    """What a data set gives for each list of keys, in order; workers live until `close`."""

    def __init__(
        self,
        dataset: Dataset[Any],
        keys: Callable[[], Iterator[list[Any]]],
        pack: Callable[[list[Any]], T],
        settings: FeedSettings,
        name: Callable[[Any], str] = str,
    ) -> None:
        several = settings.workers > 0
        self._name, self._asked, self._given = name, deque[list[Any]](), 0
        self._stacks = Stacks() if several else None
        self._loader: DataLoader[Any] | None = DataLoader(
            dataset,
            batch_sampler=_Keys(keys, self._asked),
            num_workers=settings.workers,
            collate_fn=pack,
            pin_memory=settings.pin,
            timeout=TIMEOUT_S if several else 0,
            worker_init_fn=partial(_begin, self._stacks.fd) if self._stacks else None,
            prefetch_factor=PREFETCH if several else None,
            persistent_workers=several,
            # The loader draws a seed at each start: from a generator of its own, or a resume would differ.
            generator=torch.Generator(),
        )
        self._several = several
        self._iterator: Any = None
        self._workers: list[Any] = []
        self._pids: list[int] = []

    def __iter__(self) -> Iterator[T]:
        """Raises: RunFault when a worker dies or is stuck."""
        assert self._loader is not None, "the feed is closed"
        self._start(self._loader)
        while True:
            try:
                packed = _DEATHS.next_of(self._iterator, self._pids)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:
                raise self._stuck() if "timed out" in str(error) else _explained(error) from error
            self._asked.popleft()
            self._given += 1
            yield packed

    def _start(self, loader: DataLoader[Any]) -> None:
        before = set(multiprocessing.active_children())
        with warnings.catch_warnings(), _signals_held():
            # Python ≥ 3.12 warns of a fork beside threads; the workers use neither torch's pool nor any lock of it.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._iterator = iter(loader)
        started = [p for p in multiprocessing.active_children() if p not in before]
        if started:
            _DEATHS.follow()
            self._workers += started
            self._pids = [worker.pid for worker in self._workers]
            # Before multiprocessing's own exit, which would wait for workers that ignore its signal.
            atexit.register(self.close)

    def _stuck(self) -> RunFault:
        """What the worker whose turn it is has been doing, and with which samples."""
        workers = self._iterator._workers
        worker, keys = workers[self._given % len(workers)], self._asked[0] if self._asked else []
        assert self._stacks is not None, "only workers time out"
        what = f"worker {worker.pid} gave nothing for {TIMEOUT_S:g} s, at one of {', '.join(map(self._name, keys[:5]))}"
        stack = self._stacks.of(worker.pid)
        hint = f"a worker is stuck; data.workers=0 shows where. It is in\n{stack}" if stack else _HINT
        return RunFault(Problem("data.workers", what, hint))

    def close(self) -> None:
        """No worker is left; harmless when called twice."""
        atexit.unregister(self.close)
        if self._several and self._iterator is not None:
            self._iterator._shutdown_workers()
        self._iterator, self._loader = None, None
        if self._stacks is not None:
            self._stacks.close()
        for worker in self._workers:
            if worker.is_alive():
                worker.kill()
                worker.join()
        _DEATHS.forget(self._pids)
        self._workers, self._pids = [], []


class _Keys(Iterable[list[Any]]):
    """A batch sampler that starts afresh at each iteration."""

    def __init__(self, make: Callable[[], Iterator[list[Any]]], asked: deque[list[Any]]) -> None:
        self._make, self._asked = make, asked

    def __iter__(self) -> Iterator[list[Any]]:
        self._asked.clear()
        for keys in self._make():
            self._asked.append(keys)
            yield keys


_SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Processes and threads that start inside get no interrupt before they have seen to it; this one gets it after."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_TO_ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(stacks_fd: int, worker: int) -> None:
    """What each worker does first."""
    _ignore_signals(worker)
    show_stack_on_request(stacks_fd)


def _ignore_signals(worker: int) -> None:
    """An interrupt reaches the whole process group, but the training process decides when workers end."""
    for sent in _SENT_TO_ALL:
        signal.signal(sent, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SENT_TO_ALL)


class _Deaths:
    """torch's handler of a worker's death, which raises wherever the program is: here in waits for a batch alone."""

    def __init__(self) -> None:
        self._torchs: Callable[[int, FrameType | None], Any] | None = None
        self._seen: dict[int, RuntimeError] = {}
        self._waiting: list[int] = []

    def follow(self) -> None:
        """From now on, where this thread is the one that gets signals."""
        handler = signal.getsignal(signal.SIGCHLD)
        if threading.current_thread() is threading.main_thread() and callable(handler) and handler != self.handle:
            self._torchs = handler
            signal.signal(signal.SIGCHLD, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raises what torch does, in a wait for batches of the worker that died: in this one or in the next."""
        assert self._torchs is not None, "it is installed by follow"
        try:
            self._torchs(number, frame)
        except RuntimeError as error:
            named = re.search(r"\bpid (\d+)", str(error))
            if named is None:
                raise
            self._seen[int(named[1])] = error
            self._tell()

    def next_of(self, batches: Iterator[T], pids: list[int]) -> T:
        """The next batch of these workers. Raises: RuntimeError where one of them has died."""
        self._waiting = pids
        try:
            self._tell()
            return next(batches)
        finally:
            self._waiting = []

    def forget(self, pids: list[int]) -> None:
        """Workers that were ended."""
        for pid in pids:
            self._seen.pop(pid, None)

    def _tell(self) -> None:
        for pid in self._waiting:
            if pid in self._seen:
                raise self._seen.pop(pid)


_DEATHS = _Deaths()
"""A process has one handler of a signal."""


def _explained(error: Exception) -> RunFault:
    if isinstance(error, ConnectionError | EOFError):
        # The batch was on its way when its sender ended.
        error = RuntimeError(f"a worker process died ({error})")
    text = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    if "shm" in str(error).lower() or "bus error" in str(error).lower():
        hint = "shared memory is too small: enlarge it (docker run --shm-size=8g), or use fewer data.workers"
    else:
        hint = "data.workers=0 reads in the training process and shows more"
    return RunFault(Problem("data.workers", f"reading failed: {text}", hint))
