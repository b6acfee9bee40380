"""Reading by threads: order, ends, errors, what is stuck."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import pytest
import torch

from mpt.data import _threads
from mpt.data._threads import AHEAD, ThreadFeed
from mpt.errors import RunFault


class Squares:
    """n → n²; `broken` raises; `gate` is waited for before 3."""

    def __init__(self, broken: int | None = None, gate: threading.Event | None = None) -> None:
        self.broken, self.gate = broken, gate
        self.read: set[int] = set()

    def __getitem__(self, key: int) -> int:
        if key == self.broken:
            raise ZeroDivisionError("broken")
        if key == 3 and self.gate is not None:
            self.gate.wait()
        self.read.add(key)
        return key * key


def batches(n: int | None, size: int = 20) -> Iterator[list[int]]:
    for i in range(n) if n is not None else count():
        yield list(range(i * size, (i + 1) * size))


def ours() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("mpt-data")]


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_batches_come_in_order_and_again_from_the_start(workers: int) -> None:
    feed = ThreadFeed(Squares(), lambda: batches(5), list, workers, pin=False)
    expected = [[k * k for k in keys] for keys in batches(5)]
    assert list(feed) == expected
    assert list(feed) == expected
    assert len(ours()) == workers
    feed.close()
    feed.close()
    assert ours() == []


class Threads:
    """How many threads torch would use where it is read."""

    def __getitem__(self, key: int) -> int:
        return torch.get_num_threads()


def test_kernels_of_readers_start_no_threads_and_those_of_the_trainer_are_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        feed = ThreadFeed(Threads(), lambda: batches(4), list, 2, pin=False)
        assert {n for batch in feed for n in batch} == {1}
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 3
        feed.close()
    finally:
        torch.set_num_threads(before)


def test_no_more_is_read_ahead_than_asked_for() -> None:
    data = Squares()
    feed = ThreadFeed(data, lambda: batches(None), list, 2, pin=False)
    iterator = iter(feed)
    next(iterator)
    feed.close()
    assert max(data.read) < AHEAD * 20


def test_an_iteration_that_is_left_cancels_what_nobody_waits_for() -> None:
    gate = threading.Event()
    data = Squares(gate=gate)
    feed = ThreadFeed(data, lambda: batches(None, 1), list, 1, pin=False)
    iterator = iter(feed)
    assert list(islice(iterator, 3)) == [[0], [1], [4]]
    iterator.close()  # type: ignore[attr-defined]
    gate.set()
    assert next(iter(feed)) == [0]
    feed.close()
    assert data.read <= {0, 1, 2, 3}


def test_what_a_reader_raises_reaches_the_caller_in_its_batch() -> None:
    feed = ThreadFeed(Squares(broken=25), lambda: batches(3), list, 2, pin=False)
    iterator = iter(feed)
    assert len(next(iterator)) == 20
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    feed.close()


def test_a_batch_that_never_comes_is_a_fault_with_a_next_move(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, others = threading.Event(), set(ours())
    monkeypatch.setattr(_threads, "TIMEOUT_S", 0.0)
    monkeypatch.setattr(_threads, "JOIN_S", 0.0)
    feed = ThreadFeed(Squares(gate=gate), lambda: batches(1), list, 1, pin=False)
    with pytest.raises(RunFault, match=r"stuck.*\n?.*data\.workers=0"):
        list(feed)
    feed.close()
    gate.set()
    for thread in set(ours()) - others:
        thread.join()
