"""Schedules against torch's schedulers and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from mpt import registry
from mpt.config.schema import ScheduleConfig
from mpt.errors import ConfigError
from mpt.schedules import lr_at

TOTAL = 40


def rates(name: str, warmup: int = 0, **options: object) -> list[float]:
    lr = lr_at(ScheduleConfig(name, warmup, dict(options)), 0.1, TOTAL)
    return [lr(u) for u in range(TOTAL)]


def theirs(make: object, **options: object) -> list[float]:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    schedule = make(optimizer, **options)  # type: ignore[operator]
    out = []
    for _ in range(TOTAL):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return out


def close(a: list[float], b: list[float]) -> bool:
    """To the last few bits of float64: torch multiplies its way along, ours is closed form."""
    return all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-15) for x, y in zip(a, b, strict=True))


def test_cosine_equals_torchs() -> None:
    want = theirs(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=TOTAL, eta_min=0.01)
    assert close(rates("cosine", final_frac=0.1), want)


def test_exponential_equals_base_times_gamma_to_the_update() -> None:
    assert rates("exponential", gamma=0.9) == [0.1 * 0.9**u for u in range(TOTAL)]


def test_step_equals_torchs() -> None:
    assert close(rates("step", every=7, gamma=0.5), theirs(torch.optim.lr_scheduler.StepLR, step_size=7, gamma=0.5))


def test_linear_equals_torchs() -> None:
    want = theirs(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.2, total_iters=TOTAL)
    assert close(rates("linear", final_frac=0.2), want)


def test_one_cycle_equals_torchs() -> None:
    def make(optimizer: torch.optim.Optimizer) -> object:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=TOTAL + 1, cycle_momentum=False)

    lr = lr_at(ScheduleConfig("one_cycle", 0, {}), 0.1, TOTAL + 1)
    assert close([lr(u) for u in range(TOTAL)], theirs(make))


def test_warmup_rises_to_the_base_and_the_shape_takes_the_rest() -> None:
    got = rates("cosine", warmup=10)
    assert close(got[:10], [0.01 * (u + 1) for u in range(10)])
    rest = lr_at(ScheduleConfig("cosine", 0, {}), 0.1, TOTAL - 10)
    assert got[10:] == [rest(u) for u in range(TOTAL - 10)]


@pytest.mark.parametrize("name", registry.names("schedules"))
def test_every_schedule_is_finite_and_pure_past_its_end(name: str) -> None:
    lr = lr_at(ScheduleConfig(name, 3, {}), 0.1, TOTAL)
    forward = [lr(u) for u in range(TOTAL + 5)]
    backward = [lr(u) for u in reversed(range(TOTAL + 5))]
    assert forward == backward[::-1]
    assert all(math.isfinite(x) and 0 <= x <= 0.1 + 1e-12 for x in forward)


@pytest.mark.parametrize(
    ("name", "options"),
    [("cosine", {"final_frac": 2}), ("step", {"every": 0}), ("exponential", {"gamma": -1}), ("linear", {"gama": 1})],
)
def test_a_wrong_option_is_refused_by_name(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        lr_at(ScheduleConfig(name, 0, options), 0.1, TOTAL)


@pytest.mark.parametrize("options", [{"name": "exponential"}, {"name": "step", "every": 1}])
def test_a_rate_that_grows_stays_where_it_is_once_the_run_is_over(options: dict[str, object]) -> None:
    """Rates are looked up ahead of the run's end."""
    name = str(options.pop("name"))
    lr = lr_at(ScheduleConfig(name, 0, {**options, "gamma": 2.0}), 0.1, TOTAL)
    assert lr(TOTAL - 1) == 0.1 * 2.0 ** (TOTAL - 1)
    assert lr(TOTAL) == lr(TOTAL + 4096) == lr(10**9) == 0.1 * 2.0**TOTAL


@pytest.mark.parametrize(("name", "gamma"), [("exponential", 10.0), ("exponential", 1e300), ("step", 10.0)])
def test_a_rate_that_grows_past_float32_is_refused(name: str, gamma: float) -> None:
    options = {"gamma": gamma, **({"every": 1} if name == "step" else {})}
    with pytest.raises(ConfigError, match=r"schedule\.gamma: got 1.*run's end\n  hint: float32 holds up to 3.4e\+38"):
        lr_at(ScheduleConfig(name, 0, options), 0.1, TOTAL)
    assert lr_at(ScheduleConfig(name, TOTAL - 2, {**options, "gamma": 10.0}), 0.1, TOTAL)(TOTAL) == 0.1 * 10.0**2
