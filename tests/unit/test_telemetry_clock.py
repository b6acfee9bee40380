"""Times of steps and phases: what is counted, what is left out, and what can't be told."""

from __future__ import annotations

import time

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpt.telemetry import clock as module
from mpt.telemetry.clock import Clock, percentile
from mpt.types import Unmeasured


class Hands:
    """A clock face that only moves when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(module.time, "perf_counter", hands.perf_counter)
    return hands


def step(clock: Clock, hands: Hands, work_s: float, waits_s: tuple[float, ...] = (), samples: int = 8) -> None:
    clock.begin()
    for wait in waits_s:
        clock.fetch()
        hands.now_s += wait
        clock.fetched()
    hands.now_s += work_s
    clock.end(samples)


def fails_after(hands: Hands, seconds: float) -> None:
    hands.now_s += seconds
    raise RuntimeError("disk")


def test_a_step_lasts_from_begin_to_end_and_its_waits_are_apart(hands: Hands) -> None:
    clock = Clock("cpu")
    step(clock, hands, 3.0, (0.5, 0.25))
    hands.now_s += 50  # what lies between steps is in none
    step(clock, hands, 1.0)
    assert clock.drain() == [(3.75, 0.75), (1.0, 0.0)]
    assert clock.drain() == []


def test_a_slowed_step_is_in_its_phase_and_in_no_statistic(hands: Hands) -> None:
    clock = Clock("cpu", warmup=1)
    step(clock, hands, 9.0)
    clock.begin()
    hands.now_s += 50
    clock.end(8, slowed=True)
    step(clock, hands, 2.0)
    assert clock.drain() == [(9.0, 0.0), (50.0, 0.0), (2.0, 0.0)]
    speed = clock.speed()
    assert (speed.n, speed.samples_per_s, speed.step_p95_ms) == (1, 4.0, 2000.0)
    assert clock.split()["train"] == 61.0


def test_warm_up_steps_are_in_no_statistic_and_n_is_told(hands: Hands) -> None:
    clock = Clock("cpu", warmup=2)
    for work in (100.0, 100.0, 1.0, 2.0, 3.0):
        step(clock, hands, work, (1.0,), samples=10)
    clock.drain()
    speed = clock.speed()
    assert speed.n == 3
    assert speed.samples_per_s == 30 / 9
    assert speed.step_p50_ms == 3000
    assert speed.data_wait_share == 3 / 9


@pytest.mark.parametrize("steps", [0, 2, 5])
def test_fewer_steps_than_the_warm_up_are_unmeasured_with_the_reason_not_zero(hands: Hands, steps: int) -> None:
    clock = Clock("cpu")
    for _ in range(steps):
        step(clock, hands, 1.0)
    clock.drain()
    why = Unmeasured(f"{steps} steps, fewer than the 5 warm-up steps + 1")
    speed = clock.speed()
    assert (speed.samples_per_s, speed.step_p50_ms, speed.step_p95_ms, speed.data_wait_share) == (why, why, why, why)
    assert speed.n == 0
    assert clock.recent() == (None, None)
    assert clock.warmup_excess_s() == why


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentiles_are_those_of_numpy(values: list[float], share: float) -> None:
    assert percentile(sorted(values), share) == pytest.approx(numpy.percentile(values, 100 * share), rel=1e-9, abs=1e-9)


def test_the_excess_of_the_warm_up_over_usual_steps_is_what_compiling_took(hands: Hands) -> None:
    clock = Clock("cpu", warmup=2)
    for work in (20.0, 2.0, 1.0, 1.0, 1.0):
        step(clock, hands, work)
    clock.drain()
    assert clock.warmup_excess_s() == 19 + 1


def test_recent_looks_at_the_last_steps_only(hands: Hands) -> None:
    clock = Clock("cpu", warmup=0)
    for work in (9.0, 9.0, 2.0, 2.0):
        step(clock, hands, work, samples=8)
    clock.drain()
    assert clock.recent(2) == (4.0, 2.0)


def test_the_split_of_time_has_every_phase_and_the_total(hands: Hands) -> None:
    clock = Clock("cpu")
    with clock.phase("startup"):
        hands.now_s += 7
    step(clock, hands, 3.0, (0.5,))
    clock.drain()
    with clock.phase("eval"):
        hands.now_s += 2
    with pytest.raises(RuntimeError, match="disk"), clock.phase("checkpoint"):
        fails_after(hands, 1)
    hands.now_s += 0.25
    assert clock.split() == {
        "total": 13.75,
        "startup": 7,
        "train": 3,
        "data": 0.5,
        "eval": 2,
        "checkpoint": 1,
    }


def test_a_resumed_run_goes_on_from_the_times_of_the_earlier_process(hands: Hands) -> None:
    first = Clock("cpu")
    step(first, hands, 3.0, (0.5,))
    first.drain()
    with first.phase("eval"):
        hands.now_s += 2
    state = first.state_dict()
    hands.now_s += 1000
    second = Clock("cpu")
    second.load_state_dict(state)
    assert second.state_dict() == state
    step(second, hands, 1.0)
    second.drain()
    assert second.split() == {**state, "total": state["total"] + 1, "train": state["train"] + 1}


def test_host_times_of_real_steps_add_up_to_the_wall_clock() -> None:
    clock = Clock("cpu")
    start = time.perf_counter()
    for _ in range(20):
        clock.begin()
        torch.ones(100).sum()
        clock.end(1)
    wall_s = time.perf_counter() - start
    times = clock.drain()
    assert 0 < sum(t.time_s for t in times) <= wall_s


class FakeEvent:
    """An event of a device whose stream takes 10 ms from one mark to the next."""

    made: list[FakeEvent] = []  # noqa: RUF012
    ticks = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = -1
        FakeEvent.made.append(self)

    def record(self) -> None:
        FakeEvent.ticks += 1
        self.at = FakeEvent.ticks

    def synchronize(self) -> None:
        return

    def elapsed_time(self, end: FakeEvent) -> float:
        return 10.0 * (end.at - self.at)


def test_on_a_device_times_are_between_events_which_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "made", [])
    clock = Clock("cuda:0")
    for _ in range(3):
        clock.begin()
        for _ in range(2):
            clock.fetch()
            clock.fetched()
        clock.end(4)
        # begin, two pairs, end: 5 intervals of 10 ms, 2 of them waits
        assert clock.drain() == [(pytest.approx(0.05), pytest.approx(0.02))]
    assert len(FakeEvent.made) == 6
