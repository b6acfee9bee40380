"""Reading in threads of the training process: no fork, no shared memory, no copy on the way.

It pays where reading is mostly C code that leaves the interpreter alone, as decoding is. Each batch is read by all
threads in chunks, AHEAD batches before it is asked for.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Barrier, Thread
from typing import Any, Generic, Protocol, TypeVar, cast

import torch

from mpt.errors import Problem, RunFault

AHEAD = 3
"""Batches under way: one that is read while one waits and one is trained on."""
CHUNK = 8
"""Samples in a task: handing it over (20 µs) vanishes beside reading them."""
TIMEOUT_S = 300.0
"""A batch that takes longer is stuck (field report I9)."""
JOIN_S = 5.0

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Indexed(Protocol[T_co]):
    """What a key is looked up in; safe to read from several threads."""

    def __getitem__(self, key: Any) -> T_co: ...


class Pool:
    """Daemon threads that take tasks in the order in which they came; one that is stuck holds up no exit.

    torch's kernels run in the thread that calls them: else each thread would start as many as the machine has CPUs.
    """

    def __init__(self, workers: int, gpu: int | None) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._gpu, self._closed, begun = gpu, False, Barrier(workers + 1)
        own = torch.get_num_threads()
        self._threads = [
            Thread(target=self._work, args=(begun,), name=f"mpt-data-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()
        begun.wait()
        torch.set_num_threads(own)  # threads that start later take the number that was set last

    def submit(self, task: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._tasks.put((future, task))
        return future

    def _work(self, begun: Barrier) -> None:
        torch.get_num_threads()  # first asked for, it is what was set last anywhere, which would undo the next line
        torch.set_num_threads(1)
        if self._gpu is not None:
            torch.cuda.set_device(self._gpu)  # pinning would open the first one
        begun.wait()
        while (taken := self._tasks.get()) is not None:
            future, task = taken
            if self._closed:
                future.cancel()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as error:  # whoever waits for the result gets it
                    future.set_exception(error)

    def close(self) -> None:
        """Threads end with the task that they are at; harmless when called twice."""
        self._closed = True
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(JOIN_S)
        self._threads = []


class ThreadFeed(Generic[T]):
    """What `dataset` gives for each list of keys, packed, in order; its threads start with the first use."""

    def __init__(
        self,
        dataset: Indexed[Any],
        keys: Callable[[], Iterator[list[Any]]],
        pack: Callable[[list[Any]], T],
        workers: int,
        *,
        pin: bool,
        name: Callable[[Any], str] = str,
    ) -> None:
        self._dataset, self._keys, self._pack, self._name = dataset, keys, pack, name
        self._workers, self._pin = workers, pin
        self._pool: Pool | None = None

    def __iter__(self) -> Iterator[T]:
        """Raises: RunFault when nothing comes for TIMEOUT_S."""
        pool, keys = self._started(), self._keys()
        under_way: deque[tuple[Future[T], list[Future[Any]], list[Any]]] = deque()
        try:
            while True:
                while len(under_way) < AHEAD and (batch := next(keys, None)) is not None:
                    under_way.append((*self._submit(pool, batch), batch))
                if not under_way:
                    return
                packed, _, batch = under_way.popleft()
                yield self._result(packed, batch)
        finally:
            for future in (f for packed, chunks, _ in under_way for f in (packed, *chunks)):
                future.cancel()

    def _submit(self, pool: Pool, batch: list[Any]) -> tuple[Future[T], list[Future[Any]]]:
        """Chunks, and after them a task that packs them: threads have taken all of its chunks when one takes it."""
        chunks = [pool.submit(_Read(self._dataset, batch[i : i + CHUNK])) for i in range(0, len(batch), CHUNK)]
        return pool.submit(_Pack(chunks, self._pack, self._pin)), chunks

    def _result(self, future: Future[T], batch: list[Any]) -> T:
        try:
            return future.result(TIMEOUT_S)
        except TimeoutError as error:
            if future.done():  # the reader's own
                raise
            what = f"nothing came for {TIMEOUT_S:g} s, at one of {', '.join(map(self._name, batch[:5]))}"
            hint = "reading is stuck (a network drive that hangs?); data.workers=0 shows where"
            raise RunFault(Problem("data.workers", what, hint)) from error

    def _started(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self._workers, torch.cuda.current_device() if self._pin else None)
            atexit.register(self.close)
        return self._pool

    def close(self) -> None:
        """No thread is left; harmless when called twice."""
        atexit.unregister(self.close)
        if self._pool is not None:
            self._pool.close()
        self._pool = None


class _Read:
    """Samples of some keys."""

    def __init__(self, dataset: Indexed[Any], keys: Sequence[Any]) -> None:
        self._dataset, self._keys = dataset, keys

    def __call__(self) -> list[Any]:
        return [self._dataset[key] for key in self._keys]


class _Pack(Generic[T]):
    """A batch of chunks that are under way."""

    def __init__(self, chunks: list[Future[list[Any]]], pack: Callable[[list[Any]], T], pin: bool) -> None:
        self._chunks, self._pack, self._pin = chunks, pack, pin

    def __call__(self) -> T:
        packed = self._pack([sample for chunk in self._chunks for sample in chunk.result()])
        return pinned(packed) if self._pin else packed


def pinned(packed: T) -> T:
    """A named tuple whose tensors lie in page-locked memory, from which CUDA copies while the host goes on."""
    if isinstance(packed, list):  # notes about samples: nothing goes to the device
        return packed
    fields = cast(Sequence[Any], packed)
    made = [field.pin_memory() if isinstance(field, torch.Tensor) else field for field in fields]
    return cast(Any, type(packed))(*made)  # type: ignore[no-any-return]
