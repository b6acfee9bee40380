"""Saves beside the training: what was asked for is what is saved, one at a time, and a fault is told."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mpt.checkpoint import CheckpointStore, Saver, load
from mpt.checkpoint.marker import STATE
from mpt.checkpoint.snapshot import Snapshots
from mpt.errors import RunFault


class Gate:
    """Holds every write back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open, self.error = threading.Event(), 0
        self._writes, self._patch = CheckpointStore.save, monkeypatch
        monkeypatch.setattr(CheckpointStore, "save", lambda *a, **k: self._held(*a, **k))

    def _held(self, *args: Any, **kwargs: Any) -> Path:
        assert self._open.wait(30), "nobody opened the gate"
        if self.error:
            raise RunFault(os.strerror(self.error))
        return self._writes(*args, **kwargs)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open()


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Saver]:
    def saver(keep: int = 2, **options: Any) -> Saver:
        return Saver(CheckpointStore(tmp_path / "c", keep), **{"background": True, **options})

    return saver


def test_a_save_holds_the_values_of_its_moment_whatever_training_does_next(make: Any, gate: Gate) -> None:
    weight = torch.arange(6.0).reshape(2, 3).t()
    state = {"model": {"w": weight, "tied": weight, "row": weight[1]}, "list": [1, (weight,)]}
    saver = make()
    saver.save(state, step=3, update=2)
    weight.mul_(-1)
    state["list"].append("later")  # type: ignore[attr-defined]
    gate.open()
    saver.wait()
    got = load(saver._store.dir)
    assert torch.equal(got["model"]["w"], -weight)
    assert got["model"]["w"].stride() == weight.stride()
    assert got["list"][0] == 1
    assert len(got["list"]) == 2
    tensors = [got["model"][name] for name in ("w", "tied", "row")]
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == 1


def test_the_memory_of_one_copy_is_taken_again_for_the_next() -> None:
    snapshots, state = Snapshots(), {"a": torch.zeros(100), "b": torch.ones(100), "c": torch.zeros(7).half()}
    places = []
    for _ in range(3):
        copy, _ = snapshots.take(state, copied=True)
        assert all(torch.equal(copy[name], state[name]) for name in state)
        places.append(sorted(t.data_ptr() for t in copy.values()))
        state["b"].add_(1)
    assert places[0] == places[1] == places[2]


@pytest.mark.parametrize("background", [True, False])
def test_a_file_is_the_same_whether_written_beside_or_at_once(make: Any, background: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {"a": torch.randn(40, 50), "half": torch.randn(7).half(), "n": 3, "rng": torch.get_rng_state()}
    with make(background=background) as saver:
        saver.save(state, step=1, update=1)
    plain = CheckpointStore(tmp_path / "plain", 1).save(state, step=1, update=1)
    assert (saver._store.dir / plain.name / STATE).read_bytes() == (plain / STATE).read_bytes()


def test_one_save_at_a_time_is_under_way(make: Any, gate: Gate) -> None:
    saver, done = make(), []
    saver.save({"n": 1}, step=1, update=1)
    second = threading.Thread(target=lambda: done.append(saver.save({"n": 2}, step=2, update=2)))
    second.start()
    second.join(0.05)
    assert not done  # it waits for the first
    gate.open()
    second.join(30)
    saver.wait()
    assert sorted(p.name for p in saver._store.dir.glob("update-*")) == ["update-000001", "update-000002"]


def test_a_handler_that_raises_in_a_wait_leaves_the_save_under_way(make: Any, gate: Gate) -> None:
    """A thread that is being joined then counts as ended: the save would have no result, a bug of ours to who reads."""
    saver = make()
    saver.save({"n": 1}, step=1, update=1)

    def raises(number: int, frame: Any) -> None:
        raise RunFault("a worker died")

    before = signal.signal(signal.SIGALRM, raises)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(RunFault, match="a worker died"):
            saver.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    gate.open()
    saver.wait()
    assert load(saver._store.dir)["n"] == 1


def test_the_last_save_is_on_disk_when_it_returns_and_takes_no_copy(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, seen, take = torch.zeros(1000), [], Snapshots.take
    monkeypatch.setattr(Snapshots, "take", lambda *a, **k: seen.append(k["copied"]) or take(*a, **k))
    saver = make()
    saver.save({"w": weight}, step=1, update=1, last=True)
    assert load(saver._store.dir)["w"].numel() == 1000
    assert seen == [False]
    assert saver.costs.snapshot_bytes == 0
    saver.save({"w": weight}, step=2, update=2)
    saver.wait()
    assert seen == [False, True]
    assert saver.costs.snapshot_bytes == 4000


def test_where_memory_has_no_room_for_a_copy_the_loop_waits_instead(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpt.checkpoint.snapshot._available_bytes", lambda: 4000)
    saver = make()
    saver.save({"w": torch.zeros(1000)}, step=1, update=1)
    assert saver.costs.snapshot_bytes == 0
    assert saver.costs.count == 1


@pytest.mark.parametrize("notices", ["poll", "wait", "save", "exit"])
def test_a_fault_of_the_writing_thread_is_raised_where_the_run_looks_next(make: Any, gate: Gate, notices: str) -> None:
    gate.error = errno.ENOSPC
    saver = make()
    saver.save({"n": 1}, step=1, update=1)
    gate.open()
    saver._job.join(30)
    calls: dict[str, Callable[[], object]] = {
        "poll": saver.poll,
        "wait": saver.wait,
        "save": lambda: saver.save({"n": 2}, step=2, update=2),
        "exit": lambda: saver.__exit__(None, None, None),
    }
    with pytest.raises(RunFault, match="No space left"):
        calls[notices]()
    saver.wait()  # told once


def test_a_failed_save_leaves_the_older_checkpoint_and_its_rank(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = make()
    saver.save({"n": 1}, step=1, update=1)
    saver.mark_best(1)
    saver.wait()

    def fails(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fails)
    saver.save({"n": 2}, step=2, update=2)
    saver.mark_best(2)
    with pytest.raises(RunFault, match="No space left"):
        saver.wait()
    assert load(saver._store.dir)["n"] == 1
    assert saver._store.best().name == "update-000001"


def test_the_best_is_kept_though_it_was_marked_while_it_was_being_written(make: Any, gate: Gate) -> None:
    saver = make(keep=1)
    saver.save({"n": 1}, step=1, update=1)
    saver.mark_best(1)
    gate.open()
    for n in (2, 3):
        saver.save({"n": n}, step=n, update=n)
    saver.wait()
    names = sorted(p.name for p in saver._store.dir.iterdir())
    assert names == ["BEST", "update-000001", "update-000003"]


def test_the_record_is_synced_before_the_checkpoint_that_relies_on_it(make: Any, gate: Gate) -> None:
    order: list[object] = []
    saver = make(sync=lambda: order.append("record"), told=lambda saved: order.append(saved.update))
    saver.save({"n": 1}, step=1, update=1)
    gate.open()
    saver.wait()
    assert order == ["record", 1]


def leave(saver: Saver, n: int, error: BaseException) -> None:
    with saver:
        saver.save({"n": n}, step=n, update=n)
        raise error


def test_an_exception_waits_for_the_save_but_a_second_ctrl_c_does_not(make: Any, gate: Gate) -> None:
    saver = make()
    with pytest.raises(KeyboardInterrupt):
        leave(saver, 1, KeyboardInterrupt())
    assert saver._store.newest_valid() == (None, [])
    gate.open()
    with pytest.raises(ValueError, match="of the run"):
        leave(saver, 2, ValueError("of the run"))
    assert load(saver._store.dir)["n"] == 2


def test_a_folder_that_was_moved_away_is_a_fault_and_is_not_made_anew(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run" / "checkpoints", 2)
    store.save({"n": 1}, step=1, update=1)
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(RunFault, match="moved or deleted"):
        store.save({"n": 2}, step=2, update=2)
    assert not (tmp_path / "run").exists()
    assert load(tmp_path / "moved")["n"] == 1
