"""Loss scaling against torch.amp.GradScaler, and by hand where torch has no such rule."""

from __future__ import annotations

import random

import pytest
import torch

from mpt.config.schema import ScalingConfig
from mpt.scaling import dynamic, none, static
from mpt.scaling.dynamic import DynamicScaling

CPU = torch.device("cpu")
YES, NO = torch.ones(()), torch.zeros(())


def make(**changes: float) -> DynamicScaling:
    rule = dict(
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        min_scale=0.0,
        max_scale=float("inf"),
        hysteresis=1,
    )
    return DynamicScaling(**{**rule, **changes}, device=CPU)  # type: ignore[arg-type]


def test_10000_random_overflow_sequences_equal_torchs_scaler_in_scale_tracker_and_skips() -> None:
    draw = random.Random(0)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for _ in range(10_000):
        rule = dict(
            init_scale=2.0 ** draw.randint(-2, 24),
            growth_factor=draw.choice([1.5, 2.0, 4.0]),
            backoff_factor=draw.choice([0.25, 0.5, 0.75]),
            growth_interval=draw.randint(1, 4),
        )
        theirs = torch.amp.GradScaler("cpu", **rule)
        theirs.scale(NO)
        ours = make(**rule)
        for _ in range(8):
            overflow = draw.random() < 0.4
            before = weight.item()
            weight.grad = torch.tensor([float("inf") if overflow else theirs.get_scale()])
            theirs.step(optimizer)
            theirs.update()
            ours.update(YES if overflow else NO)
            assert (weight.item() == before) == overflow
            assert ours.scale.item() == theirs.get_scale()
            assert ours.growth_tracker.item() == theirs._get_growth_tracker()


def test_the_scale_stays_between_floor_and_ceiling() -> None:
    scaler = make(init_scale=2.0, min_scale=1.0, max_scale=8.0, growth_interval=1)
    for found, want in [(YES, 1.0), (YES, 1.0), (NO, 2.0), (NO, 4.0), (NO, 8.0), (NO, 8.0)]:
        scaler.update(found)
        assert scaler.scale.item() == want


def test_hysteresis_2_backs_off_at_the_second_overflow_and_is_refilled_by_growth() -> None:
    scaler = make(init_scale=16.0, growth_interval=2, hysteresis=2)
    # worked by hand from Megatron-LM's rule: overflow uses up one; none left: back off; growth refills
    table = [
        (YES, 16.0, 0, 1),
        (NO, 16.0, 1, 1),
        (YES, 8.0, 0, 0),
        (YES, 4.0, 0, 0),
        (NO, 4.0, 1, 0),
        (NO, 8.0, 0, 2),
        (YES, 8.0, 0, 1),
        (YES, 4.0, 0, 0),
    ]
    for found, scale, tracker, left in table:
        scaler.update(found)
        assert (scaler.scale.item(), scaler.growth_tracker.item(), scaler.hysteresis_left.item()) == (
            scale,
            tracker,
            left,
        )


def test_every_field_of_the_state_survives_a_round_trip() -> None:
    old = make(init_scale=4.0, growth_interval=3, hysteresis=3)
    for found in (NO, YES, NO, NO):
        old.update(found)
    new = make(init_scale=99.0, growth_interval=3, hysteresis=3)
    new.load_state_dict({k: v.clone() for k, v in old.state_dict().items()})
    for name, value in old.state_dict().items():
        assert torch.equal(new.state_dict()[name], value), name
    for found in (NO, YES, NO, NO, NO):
        old.update(found)
        new.update(found)
    assert all(torch.equal(new.state_dict()[k], v) for k, v in old.state_dict().items())


def test_loading_writes_into_the_tensor_that_the_step_holds() -> None:
    scaler = make()
    held = scaler.scale
    scaler.load_state_dict(make(init_scale=2.0).state_dict())
    assert scaler.scale is held
    assert held.item() == 2.0


@pytest.mark.parametrize("entry", [none, static])
def test_a_scale_that_does_not_adapt_never_changes(entry: object) -> None:
    cfg = ScalingConfig("x", 128.0, None, None, None, None, None, None, None)
    scaler = entry.build(cfg, CPU)  # type: ignore[attr-defined]
    before = scaler.scale.item()
    for _ in range(100):
        scaler.update(YES)
        scaler.update(NO)
    assert scaler.scale.item() == before == (128.0 if entry is static else 1.0)


def test_each_option_of_dynamic_changes_behaviour() -> None:
    base = ScalingConfig("dynamic", 8.0, 2.0, 0.5, 2, 1.0, 64.0, 1, 40)
    changed = {
        "init_scale": 16.0,
        "growth_factor": 4.0,
        "backoff_factor": 0.25,
        "growth_interval": 1,
        "min_scale": 6.0,
        "max_scale": 9.0,
        "hysteresis": 2,
    }

    def trace(cfg: ScalingConfig) -> list[float]:
        scaler = dynamic.build(cfg, CPU)
        found = [NO, NO, NO, NO, YES, YES, YES, NO, NO, NO]
        return [scaler.scale.item() for f in found if scaler.update(f) is None]

    usual = trace(base)
    for key, value in changed.items():
        other = ScalingConfig(**{**vars(base), key: value})
        assert trace(other) != usual, key
