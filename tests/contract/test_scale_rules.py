"""Each strategy's rule on the host decides as its twin on the device does."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
import torch
import yaml

from mpt import registry
from mpt.config.paths import conf_dir
from mpt.stats.scales import RULES, rule_of
from tests.contract.test_scaling import BY_OVERFLOW, CHOICES, config, made

HARD = [{}, {"growth_interval": 1}, {"growth_interval": 5, "growth_factor": 3.0, "backoff_factor": 0.7}]
MORE = {
    "deepspeed": [{"consecutive_hysteresis": True}, {"raise_at_floor": False, "init_scale": 4.0}],
    "megatron": [{"hysteresis": 3}],
    "logmax": [{"beta1": 0.5, "beta2": 0.8}, {"max_scale": None, "min_scale": None}],
    "per_layer": [{"headroom_bits": 1, "max_exponent": 3}],
    "dynamic": [{"max_scale": None, "min_scale": None, "init_scale": 2.0**120}],
}


def constants(choice: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {**yaml.safe_load((conf_dir() / "scaling" / f"{choice}.yaml").read_text()), **changes}


def cases() -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for choice in CHOICES:
        changes = HARD if choice in BY_OVERFLOW else [{}]
        found += [(choice, c) for c in (*changes, *MORE.get(choice, []))]
    return found


def test_every_strategy_on_the_device_has_a_rule_on_the_host() -> None:
    missing = sorted(set(registry.names("scaling")) - set(RULES))
    assert not missing, f"mpt/stats/scales.py has no rule for {missing}: mpt report can't replay them"
    for choice in CHOICES:
        rule_of(constants(choice, {}))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("choice", "changes"), cases())
def test_a_rule_decides_as_its_twin_on_the_device(choice: str, changes: dict[str, Any], seed: int) -> None:
    changes = {**({"growth_interval": 7} if choice in BY_OVERFLOW else {}), **changes}
    scaler, rule = made(choice, **changes), rule_of(constants(choice, changes))
    draw = random.Random(seed)
    for i in range(300):
        found = draw.random() < (0.1 if i < 200 else 0.5)
        largest = 0.0 if draw.random() < 0.05 else 2.0 ** draw.uniform(-20, 8)
        finite = [draw.choice([0.0, 2.0 ** draw.uniform(-9, 15)]) for _ in scaler.leaves]
        inside = [math.inf if found and draw.random() < 0.7 else x for x in finite]
        for leaf, value in zip(scaler.leaves, inside, strict=True):
            leaf.grad = torch.tensor(value)
        scaler.update(torch.tensor(float(found)), torch.tensor(math.inf if found else largest))
        rule.update(found, math.inf if found else largest, inside)
        if choice == "logmax":
            assert rule.scale == pytest.approx(scaler.scale.item(), rel=1e-4), i
        else:
            assert rule.scale == scaler.scale.item(), i
        assert rule.exhausted == bool(scaler.exhausted.item() if scaler.exhausted is not None else False)
        if choice == "per_layer":
            assert rule.exponents.tolist() == scaler.exponents.tolist()  # type: ignore[attr-defined]


def test_the_constants_are_those_of_the_configuration() -> None:
    for choice in CHOICES:
        cfg = config(choice)
        own = {k: v for k, v in dataclasses.asdict(cfg).items() if k != "options"} | cfg.options
        assert rule_of({k: v for k, v in own.items() if v is not None}).scale == made(choice).scale.item()
