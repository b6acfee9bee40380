"""Float32 masters of half weights, their state, and the meter of updates that rounding loses without them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.unit._precision_kit import POLICIES, Cnn, built, images, pass_through, policy_config, rules


@pytest.mark.parametrize("name", [n for n in POLICIES if n != "fp16_master"])
def test_without_masters_the_optimizer_updates_the_working_weights_themselves(name: str) -> None:
    _, policy, _ = built(Cnn, policy_config(name))
    assert all(m is w for m, w in zip(policy.masters, policy.weights, strict=True))
    assert policy.state_dict() == {}


def test_masters_are_the_float32_values_that_half_weights_were_made_of() -> None:
    torch.manual_seed(0)
    initial = Cnn().state_dict()
    _, policy, _ = built(Cnn, policy_config("fp16_master"))
    for name, weight, master in zip(policy.names, policy.weights, policy.masters, strict=True):
        assert master.dtype == torch.float32
        assert torch.equal(master, initial[name])
        assert torch.equal(weight, initial[name].to(weight.dtype))
        assert (master is weight) == name.startswith(("bn", "gn"))


def test_gather_hands_gradients_to_masters_in_float32_and_frees_the_half_ones() -> None:
    model, policy, _ = built(Cnn, policy_config("fp16_master"))
    pass_through(model, policy, images())
    half = {n: w.grad.clone() for n, w in zip(policy.names, policy.weights, strict=True)}
    policy.gather()
    for name, weight, master in zip(policy.names, policy.weights, policy.masters, strict=True):
        assert master.grad is not None
        assert master.grad.dtype == torch.float32
        assert torch.equal(master.grad, half[name].float())
        assert (weight.grad is None) == (master is not weight)


def test_gather_after_each_micro_batch_adds_up_in_float32() -> None:
    model, policy, _ = built(Cnn, policy_config("fp16_master"))
    parts = []
    for seed in (0, 1):
        pass_through(model, policy, images(seed))
        parts.append(model.conv.weight.grad.float())
        policy.gather()
    at = policy.names.index("conv.weight")
    assert torch.equal(policy.masters[at].grad, parts[0] + parts[1])


def test_an_update_of_masters_reaches_the_working_weights_rounded_to_nearest() -> None:
    model, policy, _ = built(Cnn, policy_config("fp16_master"))
    with torch.no_grad():
        for master in policy.masters:
            master.add_(1e-5)
    before = model.conv.weight.detach().clone()
    policy.publish()
    master = policy.masters[policy.names.index("conv.weight")]
    assert torch.equal(model.conv.weight, master.half())
    assert not torch.equal(model.conv.weight, before)


def test_an_update_below_half_resolution_survives_in_the_masters() -> None:
    _, policy, _ = built(lambda: nn.Sequential(nn.Linear(4, 4)), policy_config("fp16_master"))
    with torch.no_grad():
        policy.masters[0].fill_(1.0)
        for _ in range(100):
            policy.masters[0].add_(1e-4)
            policy.publish()
    assert (policy.weights[0] > 1.009).all()


def test_policy_state_is_whole_after_a_round_trip() -> None:
    _, policy, _ = built(Cnn, policy_config("fp16_master"))
    with torch.no_grad():
        for master in policy.masters:
            master.add_(torch.randn_like(master))
    policy.publish()
    state = copy.deepcopy(policy.state_dict())
    _, other, _ = built(Cnn, policy_config("fp16_master"), seed=7)
    other.load_state_dict(state)
    for name, a, b in zip(policy.names, policy.masters, other.masters, strict=True):
        if name in state["masters"]:
            assert torch.equal(a, b)
    at = policy.names.index("conv.weight")
    assert torch.equal(other.weights[at], policy.weights[at])


@pytest.mark.parametrize("saved", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", POLICIES)
def test_weights_load_from_any_format_into_the_stored_one(name: str, saved: torch.dtype) -> None:
    torch.manual_seed(3)
    values = {k: v.to(saved) if v.is_floating_point() else v for k, v in Cnn().state_dict().items()}
    model, policy, _ = built(Cnn, policy_config(name))
    stored = {k: v.dtype for k, v in model.state_dict().items()}
    policy.load_weights(values)
    assert {k: v.dtype for k, v in model.state_dict().items()} == stored
    at = policy.names.index("conv.weight")
    assert torch.equal(policy.masters[at].float(), values["conv.weight"].to(policy.masters[at].dtype).float())


@pytest.mark.parametrize(
    ("name", "active"), [("fp32", False), ("fp16", False), ("fp16_master", False), ("bf16_true", True)]
)
def test_lost_updates_are_metered_only_where_they_can_be_lost(name: str, active: bool) -> None:
    _, policy, _ = built(Cnn, policy_config(name))
    assert policy.lost_updates.active is active
    assert policy.lost_updates.drain() is None


def test_the_share_of_lost_updates_is_that_of_weights_that_should_have_moved_and_did_not() -> None:
    _, policy, _ = built(lambda: nn.Sequential(nn.Linear(4, 2, bias=False)), policy_config("bf16_true"))
    (weight,) = policy.weights
    with torch.no_grad():
        weight.fill_(1.0)
        grad = torch.tensor([[1e-3, 1.0, 0.0, 1e-3], [1.0, 1.0, 1.0, 1.0]])
        policy.lost_updates.before(policy.weights)
        weight.sub_(grad.bfloat16())
        policy.lost_updates.after(policy.weights, [grad], torch.zeros(()))
    assert policy.lost_updates.drain() == pytest.approx(2 / 7)
    assert policy.lost_updates.drain() is None


def test_pure_bfloat16_loses_a_small_step_that_masters_keep() -> None:
    shares = {}
    for rate in (1.0, 1e-4):
        _, policy, _ = built(lambda: nn.Sequential(nn.Linear(64, 64)), policy_config("bf16_true"))
        grads = [torch.ones_like(w) for w in policy.weights]
        policy.lost_updates.before(policy.weights)
        with torch.no_grad():
            for w, g in zip(policy.weights, grads, strict=True):
                w.sub_(rate * g)
        policy.lost_updates.after(policy.weights, grads, torch.zeros(()))
        shares[rate] = policy.lost_updates.drain()
    assert shares[1.0] == 0
    assert shares[1e-4] > 0.5


def test_rules_keep_stored_weights_float32_too() -> None:
    for match in ("head", "re:^head$"):
        model, policy, _ = built(Cnn, policy_config("fp16_master", layers=rules((match, "float32"))))
        assert model.head.weight.dtype == torch.float32
        assert model.conv.weight.dtype == torch.float16
        at = policy.names.index("head.weight")
        assert policy.masters[at] is policy.weights[at]
