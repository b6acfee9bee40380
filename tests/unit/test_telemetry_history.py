"""Device scalars become step rows with one read; totals follow."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mpt.telemetry.history import History, StepTime, Totals, read
from mpt.types import StepRow


class Outcome(NamedTuple):
    loss_sum: Tensor
    count: int
    norm: Tensor
    scale: Tensor
    found: Tensor
    samples: int


def outcome(loss: float, *, count: int = 4, norm: float = 1.0, scale: float = 8.0, skip: bool = False) -> Outcome:
    tensors = (torch.tensor(x) for x in (loss * count, norm, scale, float(skip)))
    loss_sum, norm_t, scale_t, found = tensors
    return Outcome(loss_sum, count, norm_t, scale_t, found, 16)


TIME = StepTime(0.5, 0.125)


class CountsReads(TorchDispatchMode):
    """Counts copies to the host and reads of scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_rows_have_unscaled_means_and_the_rate_of_the_update_they_were_tried_at() -> None:
    history = History(lambda update: 0.5**update)
    for o in (outcome(2.0), outcome(3.0, skip=True), outcome(1.0, norm=7.0, scale=4.0)):
        history.add(o)
    assert history.drain([TIME] * 3) == [
        StepRow(1, 1, True, 2.0, 1.0, 1.0, 8.0, 16, 0.5, 0.125),
        StepRow(2, 1, False, 3.0, 0.5, 1.0, 8.0, 16, 0.5, 0.125),
        StepRow(3, 2, True, 1.0, 0.5, 7.0, 4.0, 16, 0.5, 0.125),
    ]
    assert len(history) == 0
    assert history.drain([]) == []


def test_adding_reads_nothing_and_a_drain_of_any_length_reads_once() -> None:
    history = History(lambda update: 0.1)
    outcomes = [outcome(1.0) for _ in range(50)]
    with CountsReads() as counts:
        for o in outcomes:
            history.add(o)
        assert counts.names == []
        history.drain([TIME] * 50)
    assert sum("stack" in n or "cat" in n for n in counts.names) == 1
    assert not any("_local_scalar_dense" in n for n in counts.names)


def test_a_time_for_each_step_is_demanded() -> None:
    history = History(lambda update: 0.1)
    history.add(outcome(1.0))
    with pytest.raises(AssertionError, match="2 times for 1 steps"):
        history.drain([TIME, TIME])


def test_totals_count_skips_streaks_and_moves_of_the_scale() -> None:
    history = History(lambda update: 0.1)
    course = [(8, True), (4, True), (2, False), (2, True), (1, False), (2, False), (16, False)]
    for scale, skip in course:
        history.add(outcome(math.nan if scale == 4 else 1.0, scale=float(scale), skip=skip))
    history.drain([TIME] * len(course))
    totals = history.totals
    assert (totals.step, totals.update, totals.skipped, totals.samples) == (7, 4, 3, 7 * 16)
    assert (totals.streak, totals.longest_streak) == (0, 2)
    assert (totals.scale_init, totals.scale_min, totals.scale_max, totals.scale_last) == (8, 1, 16, 16)
    assert (totals.growths, totals.backoffs) == (2, 3)
    assert (totals.nonfinite_losses, totals.first_nonfinite_loss) == (1, 2)
    totals.see_scale(32.0)
    assert (totals.scale_max, totals.scale_last, totals.growths) == (32, 32, 3)


def test_every_total_survives_a_round_trip_and_counting_goes_on() -> None:
    history = History(lambda update: float(update))
    history.totals = Totals(9, 7, 100, 2, 3, 1, 5, 8.0, 1.0, 16.0, 2.0, 4, 6, 1)
    state = history.state_dict()
    assert all(state[name] != default for name, default in Totals().__dict__.items())
    again = History(lambda update: float(update))
    again.load_state_dict(state)
    assert again.totals == history.totals
    again.add(outcome(1.0, scale=2.0))
    (row,) = again.drain([TIME])
    assert (row.step, row.update, row.lr) == (10, 8, 7.0)


def test_state_with_steps_still_waiting_is_refused() -> None:
    history = History(lambda update: 0.1)
    history.add(outcome(1.0))
    with pytest.raises(AssertionError, match="1 steps are not drained"):
        history.state_dict()


def test_read_gives_all_numbers_in_order_with_one_copy() -> None:
    tensors = (torch.tensor(1.5), torch.tensor([2, 3]), torch.ones(2, 2, requires_grad=True))
    with CountsReads() as counts:
        assert read(*tensors) == [1.5, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0]
    assert sum("cat" in n for n in counts.names) == 1
    assert read() == []


def test_updates_that_were_taken_back_are_no_skips() -> None:
    totals = Totals(step=10, update=8, streak=1)
    totals.back_to(5)
    assert (totals.step, totals.update, totals.undone, totals.skipped, totals.streak) == (10, 5, 3, 2, 0)
