"""Dynamic scaling over any course of overflows follows its rule written out by hand, and stops and goes on exactly."""

from __future__ import annotations

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpt.scaling.dynamic import DynamicScaling

COURSES = st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0]), max_size=60)
POWERS = st.integers(-10, 24).map(lambda e: 2.0**e)


class ByHand:
    """The rule in Python: grow after `interval` finite updates in a row, back off at the h-th overflow."""

    def __init__(self, scale: float, interval: int, hysteresis: int, low: float, high: float) -> None:
        self.scale, self.tracker, self.left = scale, 0, hysteresis
        self.interval, self.hysteresis, self.low, self.high = interval, hysteresis, low, high

    def update(self, overflow: bool) -> None:
        if overflow:
            self.left, self.tracker = max(self.left - 1, 0), 0
            if self.left == 0 or self.hysteresis == 1:
                self.scale *= 0.5
        else:
            self.tracker += 1
            if self.tracker == self.interval:
                self.scale, self.tracker, self.left = self.scale * 2, 0, self.hysteresis
        self.scale = min(max(self.scale, self.low), self.high)


def made(scale: float, interval: int, hysteresis: int, low: float, high: float) -> DynamicScaling:
    return DynamicScaling(
        init_scale=scale, growth_factor=2.0, backoff_factor=0.5, growth_interval=interval, min_scale=low,
        max_scale=high, hysteresis=hysteresis, device=torch.device("cpu"),
    )  # fmt: skip


@settings(max_examples=80)
@given(
    course=COURSES, interval=st.integers(1, 6), hysteresis=st.integers(1, 3), ends=st.tuples(POWERS, POWERS, POWERS),
    stop=st.integers(0, 60),
)  # fmt: skip
def test_f1_f2_any_course_of_overflows_follows_the_rule_and_survives_a_stop_anywhere(
    course: list[float], interval: int, hysteresis: int, ends: tuple[float, float, float], stop: int
) -> None:
    low, scale, high = sorted(ends)
    scaler, hand = made(scale, interval, hysteresis, low, high), ByHand(scale, interval, hysteresis, low, high)
    for n, found in enumerate(course):
        if n == stop:
            saved = copy.deepcopy(scaler.state_dict())
            scaler = made(1.0, interval, hysteresis, low, high)
            scaler.load_state_dict(saved)
        scaler.update(torch.tensor(found))
        hand.update(bool(found))
        assert float(scaler.scale) == hand.scale
        assert low <= hand.scale <= high
