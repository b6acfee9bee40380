"""torch's DataLoader, with its workers shielded from signals, its errors explained, and an end that is an end."""

from __future__ import annotations

import atexit
import multiprocessing
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from mpt.data._shm import PREFETCH
from mpt.data._stacks import Stacks, show_stack_on_request
from mpt.data._threads import TIMEOUT_S, ThreadFeed
from mpt.data._worker_signals import DEATHS, ignore_signals, signals_held
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
                packed = DEATHS.next_of(self._iterator, self._pids)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:
                raise self._stuck() if "timed out" in str(error) else _explained(error) from error
            self._asked.popleft()
            self._given += 1
            yield packed

    def _start(self, loader: DataLoader[Any]) -> None:
        before = set(multiprocessing.active_children())
        with warnings.catch_warnings(), signals_held():
            # Python ≥ 3.12 warns of a fork beside threads; the workers use neither torch's pool nor any lock of it.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._iterator = iter(loader)
        started = [p for p in multiprocessing.active_children() if p not in before]
        if started:
            DEATHS.follow()
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
        hint = f"{_HINT}. It is in\n{stack}" if stack else _HINT
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
        DEATHS.forget(self._pids)
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


def _begin(stacks_fd: int, worker: int) -> None:
    """What each worker does first."""
    ignore_signals(worker)
    show_stack_on_request(stacks_fd)


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
