"""What every loss-scaling strategy keeps, and the originals that the presets repeat."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from mpt import registry
from mpt.config import catalog
from mpt.config.check import check
from mpt.config.compose import compose
from mpt.config.paths import conf_dir
from mpt.config.schema import ScalingConfig
from mpt.scaling._base import Scaler
from tests.unit._step_kit import Kit, Reads, batch

LIMITS = (
    *("init_scale", "growth_factor", "backoff_factor", "growth_interval"),
    *("min_scale", "max_scale", "hysteresis", "max_consecutive_skips"),
)
CPU = torch.device("cpu")
CHOICES = [c for c in catalog.choices("scaling") if c != "auto"]
CHANGING = [c for c in CHOICES if c not in ("none", "static")]
BY_OVERFLOW = [c for c in CHANGING if c != "logmax"]
"""Strategies that back off by a factor and grow after an interval."""


def config(choice: str, **changes: Any) -> ScalingConfig:
    """What composition makes of the strategy's YAML, without Hydra."""
    values = {**dict.fromkeys(LIMITS), **yaml.safe_load((conf_dir() / "scaling" / f"{choice}.yaml").read_text())}
    assert changes.keys() <= values.keys(), f"{choice} has no {changes.keys() - values.keys()}"
    values |= changes
    own = {f.name for f in fields(ScalingConfig)}
    options = {k: v for k, v in values.items() if k not in own}
    return ScalingConfig(**{k: v for k, v in values.items() if k in own}, options=options)


def made(choice: str, **changes: Any) -> Scaler:
    cfg = config(choice, **changes)
    scaler: Scaler = registry.load("scaling", cfg.rule or cfg.name).build(cfg, CPU)
    torch.manual_seed(0)
    scaler.attach(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    return scaler


def listed(choice: str) -> set[str]:
    """The keys that mean something to the strategy itself."""
    found = yaml.safe_load((conf_dir() / "scaling" / f"{choice}.yaml").read_text())
    return set(found) - {"name", "rule", "max_consecutive_skips"}


def feed(scaler: Scaler, overflow: bool, largest: float = 1.0) -> float:
    """One update; the scale afterwards."""
    for leaf in scaler.leaves:
        leaf.grad = torch.tensor(math.inf if overflow else largest)
    scaler.update(torch.tensor(float(overflow)), torch.tensor(math.inf if overflow else largest))
    return scaler.scale.item()


def random_course(seed: int, n: int, share: float = 0.3) -> Iterator[tuple[bool, float]]:
    draw = random.Random(seed)
    for _ in range(n):
        yield draw.random() < share, 2.0 ** draw.uniform(-20, 8)


def test_all_presets_of_the_table_are_there_with_their_constants() -> None:
    keys = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale", "hysteresis")
    table = {
        "dynamic": (2.0**16, 2, 0.5, 2000, 1, 2.0**24, 1),
        "apex": (2.0**16, 2, 0.5, 2000, None, 2.0**24, 1),
        "keras": (2.0**15, 2, 0.5, 2000, None, None, 1),
        "deepspeed": (2.0**16, 2, 0.5, 1000, 1, None, 2),
        "megatron": (2.0**32, 2, 0.5, 1000, 1, None, 2),
        "openseq2seq_backoff": (2.0**14, 2, 0.5, 2000, 1, 2.0**14, 1),
        "logmax": (1, None, None, None, 1, 2.0**14, None),
    }
    for choice, want in table.items():
        assert tuple(getattr(config(choice), key) for key in keys) == want, choice
    assert {*table, "static", "none", "per_layer"} == set(CHOICES)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_field_of_the_state_survives_a_round_trip_and_goes_on_bit_equal(choice: str) -> None:
    changes = {"growth_interval": 3} if "growth_interval" in listed(choice) else {}
    old, new = made(choice, **changes), made(choice, **changes)
    for overflow, largest in random_course(1, 40):
        feed(old, overflow, largest)
    fresh = new.state_dict()
    changed = {k: v.clone() for k, v in old.state_dict().items()}
    for i, tensor in enumerate(changed.values()):  # fields that the course left as they were count too
        if choice not in ("none", "static") and torch.equal(tensor, list(fresh.values())[i]):
            tensor.add_(1)
    old.load_state_dict(changed)
    held = new.scale
    new.load_state_dict({k: v.clone() for k, v in changed.items()})
    assert new.scale is held
    for overflow, largest in random_course(2, 60):
        assert all(torch.equal(new.state_dict()[k], v) for k, v in old.state_dict().items())
        assert feed(old, overflow, largest) == feed(new, overflow, largest)


@pytest.mark.parametrize("choice", CHANGING)
@pytest.mark.parametrize("seed", range(3))
def test_the_scale_stays_between_floor_and_ceiling(choice: str, seed: int) -> None:
    changes = {"min_scale": 4.0, "max_scale": 64.0, "init_scale": 16.0}
    if choice != "logmax":
        changes |= {"growth_interval": 1, "hysteresis": 1 + seed}
    scaler = made(choice, **changes)
    course = [(False, 2.0**-12)] * 20 + list(random_course(seed, 300, 0.2 + 0.3 * seed))
    scales = [feed(scaler, overflow, largest) for overflow, largest in course]
    assert min(scales) >= 4
    assert max(scales) <= 64
    assert len(set(scales)) > 1


@pytest.mark.parametrize("choice", CHANGING)
def test_without_limits_a_scale_never_becomes_zero_or_infinite(choice: str) -> None:
    changes = {} if choice == "logmax" else {"growth_interval": 1, "hysteresis": 1}
    for overflow in (True, False):
        scaler = made(choice, **changes, min_scale=None, max_scale=None)
        for _ in range(300):
            scale = feed(scaler, overflow, 2.0**-120)
        assert 0 < scale < math.inf


@pytest.mark.parametrize("choice", BY_OVERFLOW)
@pytest.mark.parametrize("interval", [1, 2, 5])
def test_the_growth_interval_is_exact(choice: str, interval: int) -> None:
    scaler = made(choice, growth_interval=interval, init_scale=2.0, hysteresis=1)
    first = interval + (choice == "deepspeed")  # its counter starts one later, and after each overflow
    scales = [feed(scaler, False) for _ in range(first + interval)]
    assert scales == [2.0] * (first - 1) + [4.0] * interval + [8.0]
    assert feed(scaler, True) == 4.0
    assert [feed(scaler, False) for _ in range(first)] == [4.0] * (first - 1) + [8.0]


@pytest.mark.parametrize("choice", BY_OVERFLOW)
@pytest.mark.parametrize("hysteresis", [1, 2, 4])
def test_hysteresis_is_obeyed_whatever_lies_between_the_overflows(choice: str, hysteresis: int) -> None:
    for finite_between in (0, 1, 3):
        scaler = made(choice, hysteresis=hysteresis, init_scale=1024.0)
        for _ in range(hysteresis - 1):
            assert feed(scaler, True) == 1024
            assert all(feed(scaler, False) == 1024 for _ in range(finite_between))
        assert feed(scaler, True) == 512
        assert feed(scaler, True) == 256  # used up: each overflow backs off until growth refills it


@pytest.mark.parametrize("choice", CHANGING)
def test_an_update_reads_nothing_on_the_host(choice: str) -> None:
    scaler = made(choice)
    for leaf in scaler.leaves:
        leaf.grad = torch.ones(())
    with Reads() as reads:
        for found in (torch.zeros(()), torch.ones(())):
            scaler.update(found, torch.ones(()))
    assert reads.count == 0


OTHER: dict[str, Any] = {
    "init_scale": 8.0,
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "growth_interval": 3,
    "min_scale": 1024.0,
    "max_scale": 4096.0,
    "hysteresis": 3,
    "consecutive_hysteresis": True,
    "raise_at_floor": False,
    "log_max": 12.0,
    "beta1": 0.5,
    "beta2": 0.5,
    "overflow_std_dev": 1.0,
    "headroom_bits": 8,
    "max_exponent": 2,
}
"""A value of each option that is nobody's default."""


def trace(choice: str, **changes: Any) -> list[float]:
    """All state over a course with growth, overflow, a floor and a ceiling."""
    scaler = made(choice, **changes)
    course = [*random_course(5, 60, 0.25), *[(True, 1.0)] * 30, *[(False, 2.0**-9)] * 30, (True, 1.0), (False, 1.0)]
    told = [scaler.scale.item()]  # what the first step uses
    for overflow, largest in course:
        feed(scaler, overflow, largest)
        told += [x for value in scaler.state_dict().values() for x in value.reshape(-1).tolist()]
    return told


@pytest.mark.parametrize("choice", CHANGING)
def test_every_option_changes_behaviour(choice: str) -> None:
    usual = {"init_scale": 2048.0, "max_scale": 1e6, **({"growth_interval": 2} if choice != "logmax" else {})}
    before = trace(choice, **usual)
    for key in listed(choice):
        assert trace(choice, **{**usual, key: OTHER[key]}) != before, key


@pytest.mark.parametrize("choice", CHOICES)
def test_a_strategy_passes_every_rule_of_configuration(
    choice: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check(compose(["precision=fp16", f"scaling={choice}"])) == []


@pytest.mark.parametrize("choice", CHOICES)
def test_training_with_it_and_resuming_in_the_middle_is_bit_equal(choice: str) -> None:
    words = ("precision=fp16", f"scaling={choice}", "optimizer.lr=1e-2")
    words += ("scaling.growth_interval=3",) if "growth_interval" in listed(choice) else ()
    whole, first, second = Kit(*words), Kit(*words), Kit(*words)
    for i in range(12):
        whole.step([batch(i)])
        (first if i < 6 else second).step([batch(i)])
        if i == 5:
            second.model.load_state_dict(first.model.state_dict())
            second.optimizer.load_state_dict(first.optimizer.state_dict())
            second.scaler.load_state_dict(first.scaler.state_dict())
            second.rates.start_at(int(sum(1 for _ in range(6))))
    for one, other in zip(whole.everything(), second.everything(), strict=True):
        assert torch.equal(one, other)
    for key, value in whole.scaler.state_dict().items():
        assert torch.equal(value, second.scaler.state_dict()[key]), key


class Megatron:
    """Megatron-LM's rule, as its DynamicGradScaler documents it, in plain numbers."""

    def __init__(self, scale: float, interval: int, hysteresis: int, floor: float) -> None:
        self.scale, self.interval, self.full, self.floor = scale, interval, hysteresis, floor
        self.growth, self.left = 0, hysteresis

    def update(self, overflow: bool) -> float:
        if overflow:
            self.growth, self.left = 0, self.left - 1
            if self.left <= 0:
                self.scale = max(self.scale * 0.5, self.floor)
            return self.scale
        self.growth += 1
        if self.growth == self.interval:
            self.growth, self.left, self.scale = 0, self.full, self.scale * 2
        return self.scale


class DeepSpeed:
    """DeepSpeed's rule: counts iterations since the last overflow; None once it would raise."""

    def __init__(self, scale: float, interval: int, hysteresis: int, floor: float, consecutive: bool) -> None:
        self.scale, self.interval, self.full, self.floor, self.consecutive = (
            *(scale, interval, hysteresis, floor),
            consecutive,
        )
        self.now, self.last, self.left = 0, -1, hysteresis

    def update(self, overflow: bool) -> float | None:
        if overflow:
            if self.full == 1 or self.left == 1:
                if self.scale == self.floor:
                    return None
                self.scale = max(self.scale / 2, self.floor)
            else:
                self.left -= 1
            self.last = self.now
        else:
            if self.consecutive:
                self.left = self.full
            stable = self.now - self.last - 1
            if stable > 0 and stable % self.interval == 0:
                self.left = self.full
                self.scale *= 2
        self.now += 1
        return self.scale


@pytest.mark.parametrize("seed", range(20))
def test_megatron_equals_its_documented_rule(seed: int) -> None:
    draw = random.Random(seed)
    interval, hysteresis = draw.randint(1, 6), draw.randint(1, 4)
    changes = {"growth_interval": interval, "hysteresis": hysteresis, "init_scale": 64.0}
    scaler, theirs = made("megatron", **changes), Megatron(64.0, interval, hysteresis, 1.0)
    for overflow, _ in random_course(seed, 200):
        assert feed(scaler, overflow) == theirs.update(overflow)


@pytest.mark.parametrize("seed", range(20))
def test_deepspeed_equals_its_documented_rule_up_to_the_error_at_the_floor(seed: int) -> None:
    draw = random.Random(seed)
    interval, hysteresis, consecutive = draw.randint(1, 6), draw.randint(1, 4), seed % 2 == 0
    changes = {"growth_interval": interval, "hysteresis": hysteresis, "init_scale": 64.0}
    scaler = made("deepspeed", **changes, consecutive_hysteresis=consecutive)
    theirs = DeepSpeed(64.0, interval, hysteresis, 1.0, consecutive)
    for overflow, _ in random_course(seed, 200, 0.3 + 0.02 * seed):
        want = theirs.update(overflow)
        got = feed(scaler, overflow)
        assert scaler.exhausted is not None
        assert scaler.exhausted.item() == (want is None)
        if want is None:
            break
        assert got == want


def test_a_hand_worked_table_of_megatron_and_deepspeed() -> None:
    # interval 2, hysteresis 2, from 16: overflow is o, a finite step is .
    course = "o.oo..oo"
    table = {
        "megatron": [16, 16, 8, 4, 4, 8, 8, 4],
        "deepspeed": [16, 16, 8, 4, 4, 4, 2, 1],  # its first growth after an overflow takes a third finite step
    }
    for choice, want in table.items():
        scaler = made(choice, growth_interval=2, init_scale=16.0)
        assert [feed(scaler, mark == "o") for mark in course] == want, choice


def test_logmax_puts_mean_plus_deviations_of_log2_at_the_top() -> None:
    scaler = made("logmax", max_scale=1e9, beta1=0.9, beta2=0.99)
    generator = torch.Generator().manual_seed(0)
    logs = torch.randn(2000, generator=generator, dtype=torch.float64) * 2 - 12
    mean = slow = square = w1 = w2 = 0.0
    for log in logs.tolist():
        feed(scaler, False, 2.0**log)
        mean, slow, square = 0.9 * mean + 0.1 * log, 0.99 * slow + 0.01 * log, 0.99 * square + 0.01 * log * log
        w1, w2 = 0.9 * w1 + 0.1, 0.99 * w2 + 0.01
    sigma = math.sqrt(square / w2 - (slow / w2) ** 2)
    want = 2.0 ** (16 - (mean / w1 + 3.09 * sigma))
    assert scaler.scale.item() == pytest.approx(want, rel=2e-3)
    before = scaler.scale.item()
    assert feed(scaler, False, 0.0) == before  # gradients that are all zero say nothing
    assert feed(scaler, True) < before / 2


class Sizes(nn.Module):
    """Three layers whose gradients differ by many powers of two; its branches join again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.side = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1)).tanh()
        return self.head(h + self.side(h) * 2**-9)


def test_per_layer_is_bit_equal_to_no_scaling_in_float32() -> None:
    torch.manual_seed(0)
    plain = Sizes()
    ours = Sizes()
    ours.load_state_dict(plain.state_dict())
    scaler = made("per_layer")
    scaler.attach(ours)
    for i in range(8):
        gradients = []
        for model in (plain, ours):
            model.zero_grad()
            for leaf in scaler.leaves:
                leaf.grad = leaf.grad if model is plain else None
            inputs, targets = batch(i)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            (loss * (scaler.scale if model is ours else 1)).backward()
            gradients.append([p.grad for p in model.parameters()])
        scale = scaler.scale.clone()
        for a, b in zip(*gradients, strict=True):
            assert torch.equal(a, b / scale)
        scaler.update(torch.zeros(()))
        assert scaler.exponents.unique().numel() > 1 or i < 2  # type: ignore[attr-defined]
    told = scaler.facts()["layer_exponents"]
    assert told["side"] > told["first"]  # type: ignore[index]


def test_per_layer_saves_small_weight_gradients_that_one_scale_loses() -> None:
    torch.manual_seed(0)
    shares = {}
    for choice in ("static", "per_layer"):
        # one scale for all is at its limit: the head's gradients need it as low as 1
        words = ("precision=fp16", f"scaling={choice}", "scaling.init_scale=1", "optimizer=sgd", "optimizer.lr=1e-9")
        words += ("scaling.max_scale=1",) if choice == "per_layer" else ()
        torch.manual_seed(0)
        kit = Kit(*words, model=Small())
        for i in range(20):
            kit.step([batch(i)])
        grad = kit.model.get_submodule("side").weight.grad
        assert isinstance(grad, Tensor)
        shares[choice] = (grad == 0).float().mean().item()
    assert shares["static"] > 0.5
    assert shares["per_layer"] < 0.05


class Small(Sizes):
    """Its side layer's weight gradients lie below float16's least number."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1)).tanh()
        return self.head(h + self.side(h * 2**-14) * 2**-4)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by torch 2.11's own compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")
def test_per_layer_works_in_a_compiled_model() -> None:
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Sizes()
        scaler = made("per_layer")
        scaler.attach(model)
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        for i in range(3):
            for holder in (*model.parameters(), *scaler.leaves):
                holder.grad = None
            inputs, targets = batch(i)
            (nn.functional.cross_entropy(run(inputs), targets) * scaler.scale).backward()
            scaler.update(torch.zeros(()))
        results.append([scaler.state_dict()["exponents"], *(p.grad for p in model.parameters())])
    torch._dynamo.reset()
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert results[0][0].any()
