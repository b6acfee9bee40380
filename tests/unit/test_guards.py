"""Each guard fires where it should, at the step that it names, and stays silent on a healthy run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import pytest
import yaml

from mpt.config.check import check
from mpt.config.compose import compose
from mpt.config.guard import GUARDS
from mpt.config.paths import conf_dir
from mpt.config.schema import GuardConfig
from mpt.train.guards import Facts, Watch
from mpt.types import StepRow

DEFAULTS = yaml.safe_load((conf_dir() / "guard" / "default.yaml").read_text())
DYNAMIC = Facts("dynamic", True, 40, 1.0, 2.0**24, True)
NONE = Facts("none", False, 40)


def guards(facts: Facts = DYNAMIC, state: dict[str, Any] | None = None, **changes: Any) -> Watch:
    return Watch(GuardConfig(**{**DEFAULTS, **changes}), facts, state or {})


def course(steps: Iterable[tuple[float, bool, float]], first: int = 1) -> list[StepRow]:
    """Rows of (loss, applied, scale)."""
    rows, update = [], 0
    for step, (loss, applied, scale) in enumerate(steps, first):
        update += applied
        norm = 1.0 if applied else math.inf
        rows.append(StepRow(step, update, applied, loss, 1e-3, norm, scale, 16, 0.01, 0.0))
    return rows


def healthy(n: int, seed: int = 0) -> list[tuple[float, bool, float]]:
    """A loss that falls with noise, and a scale that finds its place and hunts around it."""
    draw = random.Random(seed)
    steps, scale, held = [], 2.0**16, 0
    for i in range(n):
        overflow = scale > 2.0**12
        steps.append((math.exp(-i / 800) * draw.lognormvariate(0, 0.2) + 0.01, not overflow, scale))
        held = 0 if overflow else held + 1
        scale = scale / 2 if overflow else scale * (2 if held % 500 == 0 else 1)
    return steps


def told(watch: Watch, rows: list[StepRow]) -> list[tuple[str, int]]:
    return [(alarm.guard, alarm.step) for alarm in watch.judge(rows)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("facts", [DYNAMIC, NONE])
def test_a_healthy_run_raises_no_alarm(facts: Facts, seed: int) -> None:
    assert told(guards(facts), course(healthy(9000, seed))) == []


def test_skips_in_a_row_stop_the_run_at_the_limit_and_not_before() -> None:
    bad = [(1.0, False, 2.0**10)] * 39
    assert told(guards(), course([*bad, (1.0, True, 1.0), *bad])) == []
    (alarm,) = guards(floor="off").judge(course([(1.0, True, 8.0), *bad, (1.0, False, 2.0)]))
    assert (alarm.guard, alarm.action, alarm.step) == ("skips", "stop", 2)
    assert "40 steps in a row were skipped, up to step 41 (40 of all 41)" in alarm.reason


def test_overflows_at_the_floor_are_told_once_enough_of_them_are_close_together() -> None:
    step = [(1.0, False, 1.0), *[(1.0, True, 1.0)] * 9]
    assert told(guards(), course(step * 3)) == [("floor", 1)]
    far = [(1.0, False, 1.0), *[(1.0, True, 1.0)] * 99]
    assert told(guards(), course(far * 5)) == []
    without_floor = replace(DYNAMIC, floor=None, strategy="apex")
    assert told(guards(without_floor), course([(1.0, False, 2.0**-3)] * 3)) == [("floor", 1)]


def test_a_strategy_that_gives_up_at_its_floor_is_asked_only_after_a_skip_there() -> None:
    asked = []

    def exhausted() -> bool:
        asked.append(True)
        return True

    facts = replace(DYNAMIC, strategy="deepspeed", exhausted=exhausted)
    rows = course([(1.0, True, 1.0), (1.0, False, 2.0), (1.0, True, 1.0)])
    assert (told(guards(facts), rows), asked) == ([], [])
    (alarm,) = guards(facts, floor="off").judge(course([(1.0, True, 1.0), (1.0, False, 1.0)]))
    assert (alarm.guard, alarm.action, alarm.step, asked) == ("exhausted", "stop", 2, [True])


def test_a_peak_of_the_scale_that_sinks_from_window_to_window_is_a_trend() -> None:
    falls = [(1.0, True, 2.0 ** (10 - i // 10)) for i in range(40)]
    assert told(guards(falling_window=10), course(falls)) == [("falling", 40)]
    hunts = [(1.0, True, 2.0 ** (10 - i // 10 % 2)) for i in range(200)]
    assert told(guards(falling_window=10), course(hunts)) == []
    searches = [(1.0, True, 2.0 ** max(4, 16 - i)) for i in range(200)]
    assert told(guards(falling_window=10), course(searches)) == []


def test_a_scale_that_overflows_after_each_growth_is_a_sawtooth_where_it_is_frequent() -> None:
    def saw(interval: int) -> list[tuple[float, bool, float]]:
        return [*[(1.0, True, 8.0)] * interval, *[(1.0, True, 16.0)] * interval, (1.0, False, 32.0)]

    assert told(guards(), course(saw(10) * 5)) == [("sawtooth", 11)]
    assert told(guards(), course(saw(10) * 4)) == []
    assert told(guards(), course(saw(500) * 8)) == []
    assert told(guards(), course([(1.0, False, 2.0 ** (16 - i)) for i in range(12)])) == []  # a search, not a saw


def test_a_long_stay_at_the_ceiling_is_told_once() -> None:
    top = [(1.0, True, 2.0**24)] * 35
    assert told(guards(ceiling_steps=10), course([*top, (1.0, False, 2.0**24), (1.0, True, 2.0**23), *top])) == [
        ("ceiling", 10),
        ("ceiling", 47),
    ]


def test_what_is_non_finite_is_a_fault_in_any_precision_but_not_the_search_of_a_scale() -> None:
    rows = course([(1.0, True, 8.0), (1.0, False, 8.0), (math.nan, False, 8.0), (1.0, True, 8.0)])
    assert told(guards(DYNAMIC, nonfinite="warn"), rows) == [("nonfinite", 3)]
    assert told(guards(NONE, nonfinite="warn"), rows) == [("nonfinite", 2), ("nonfinite", 3)]
    assert told(guards(NONE, nonfinite="warn", nonfinite_steps=2), rows) == [("nonfinite", 2)]
    assert told(guards(NONE), rows) == []  # skipped by the device, which is the default


def test_a_spike_is_found_by_deviations_of_the_logarithm() -> None:
    draw = random.Random(1)
    losses = [2.0 * draw.lognormvariate(0, 0.1) for _ in range(60)]
    steps = [(loss, True, 1.0) for loss in losses]
    assert told(guards(NONE), course([*steps, (9.0, True, 1.0), *steps])) == [("spike", 61)]
    assert told(guards(NONE), course([*steps, (3.0, True, 1.0)])) == []
    assert told(guards(NONE), course([*steps[:19], (9.0, True, 1.0)])) == []  # too few to say
    assert told(guards(NONE, spike_score=3.0), course([*steps, (3.5, True, 1.0)])) == [("spike", 61)]
    even = [(1.0, True, 1.0)] * 60
    assert told(guards(NONE), course([*even, (1.2, True, 1.0)])) == []
    assert told(guards(NONE), course([*even, (2.0, True, 1.0)])) == [("spike", 61)]
    assert told(guards(NONE), course([*[(-1.0, True, 1.0)] * 60, (5.0, True, 1.0)])) == []


@pytest.mark.parametrize("seed", range(5))
def test_spikes_are_those_of_guards_that_see_the_window_for_the_first_time(seed: int) -> None:
    draw = random.Random(seed)
    usual = [1.0, 1.1, 1.1, 1.2, 1.2, 1.3, 1.4, 2.0]
    rows = course([(draw.choice([*usual, 1.0 + draw.random()]), True, 1.0) for _ in range(300)])
    few: dict[str, Any] = dict(spike_window=20, spike_score=3.0)
    whole = guards(NONE, **few)
    found, last = [], deepcopy(whole.state())
    for row in rows:
        fresh = guards(NONE, deepcopy(last), **few)
        found += told(fresh, [row])
        last = fresh.state()
    assert told(whole, rows) == found
    assert found


def test_a_spike_joins_no_window() -> None:
    steps = [(1.0, True, 1.0)] * 60
    again = [(9.0, True, 1.0)] * 3
    assert told(guards(NONE), course([*steps, *again])) == [("spike", 61), ("spike", 62), ("spike", 63)]


def test_nothing_is_looked_at_after_an_alarm_that_ends_or_returns() -> None:
    steps = [*[(1.0, True, 1.0)] * 30, (9.0, True, 1.0), (9.0, True, 1.0)]
    for action in ("rollback", "skip", "stop"):
        assert told(guards(NONE, spike=action), course(steps)) == [("spike", 31)]
    assert told(guards(NONE, spike="off"), course(steps)) == []


@pytest.mark.parametrize("cut", [1, 25, 33, 50])
def test_what_guards_remember_goes_on_from_a_checkpoint(cut: int) -> None:
    settings: dict[str, Any] = dict(falling_window=7, ceiling_steps=5, sawtooth_teeth=2, spike_score=4.0)
    steps = [*healthy(30), *[(0.5, False, 1.0)] * 4, (9.0, True, 2.0**24), *[(0.5, True, 2.0**24)] * 12]
    steps += [(0.5, True, 2.0 ** (12 - i // 7)) for i in range(28)] + [(0.5, False, 1.0)] * 40
    rows = course(steps)
    whole = guards(**settings)
    wanted = whole.judge(rows)
    first = guards(**settings)
    before = first.judge(rows[:cut])
    second = guards(state=first.state(), **settings)
    assert before + second.judge(rows[cut:]) == wanted
    assert len({alarm.guard for alarm in wanted}) >= 4
    assert second.state() == whole.state()


def test_every_guard_has_an_action_and_what_it_may_be_is_refused_otherwise() -> None:
    keys = {f.name for f in fields(GuardConfig)}
    assert set(GUARDS) - {"exhausted"} <= keys
    for key in set(GUARDS) - {"exhausted"}:
        assert any(p.where == f"guard.{key}" for p in check(compose([f"guard.{key}=whatever"])))
    for key in ("skips", "floor", "falling", "sawtooth", "ceiling"):
        assert any(p.where == f"guard.{key}" for p in check(compose([f"guard.{key}=skip"])))


@pytest.mark.parametrize(
    ("words", "where", "text"),
    [
        (["guard.spike=rollback", "checkpoint.every=0"], "guard.spike=rollback", "saves at the end only"),
        (["guard.spike=skip", "checkpoint.keep=1"], "guard.spike=skip", "keeps no other"),
        (["guard.spike_window=5"], "guard.spike_window", "≥ 20"),
        (["guard.rollback_precision=fp32", "precision=fp16_master"], "guard.rollback_precision", "weights in float16"),
        (["guard.rollback_lr=2"], "guard.rollback_lr", "> 0 and ≤ 1"),
        (["guard.rollback_scale=0"], "guard.rollback_scale", "> 0"),
        (["guard.rollback_attempts=0"], "guard.rollback_attempts", "≥ 1"),
    ],
)
def test_a_guard_that_can_not_act_is_refused(words: list[str], where: str, text: str) -> None:
    assert any(text in str(p) for p in check(compose(words)) if p.where == where)
