"""What a policy does to a model: stored formats, masters, contexts, evaluation, and gradients against references."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.errors import PrecisionError
from mpt.formats import format_of
from mpt.precision import Mechanism, install, resolve
from mpt.precision.kernels import remove_kernels
from tests.unit._precision_kit import (
    CPU,
    HALF,
    POLICIES,
    Cnn,
    Gpt,
    built,
    images,
    pass_through,
    policy_config,
    rules,
    switched,
    tokens,
)
from tests.unit._step_kit import Kit, batch


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", POLICIES)
def test_norms_and_buffers_are_float32_under_every_policy(name: str) -> None:
    cfg = policy_config(name)
    model, policy, _ = built(Cnn, cfg)
    pass_through(model, policy, images())
    state = model.state_dict()
    for key in ("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "gn.weight"):
        assert state[key].dtype == torch.float32
    assert state["conv.weight"].dtype == getattr(torch, cfg.param)
    assert state["head.bias"].dtype == getattr(torch, cfg.param)


@pytest.mark.parametrize("name", HALF)
def test_batch_norm_follows_its_input_and_its_variance_may_pass_what_half_holds(name: str) -> None:
    cfg = policy_config(name)
    model, policy, _ = built(lambda: nn.Sequential(nn.BatchNorm2d(2)), cfg)
    x = (300 * torch.randn(8, 2, 16, 16, generator=torch.Generator().manual_seed(0))).to(getattr(torch, cfg.compute))
    with policy.forward():
        y = model(x)
    assert y.dtype == x.dtype
    running = model[0].running_var
    want = 0.9 + 0.1 * x.double().transpose(0, 1).flatten(1).var(1)
    assert (running.double() / want - 1).abs().max() < 1e-5
    assert 10 * running.max() > 65504


def test_bf16_gradients_equal_those_of_plain_autocast_where_the_op_lists_agree() -> None:
    cfg = policy_config("bf16")
    model, policy, _ = built(Cnn, cfg)
    twin = copy.deepcopy(model)
    loss = pass_through(model, policy, images())
    remove_kernels("cpu")
    x, y = images()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        conv = torch.relu(twin.bn(twin.conv(x)))
        normed = F.group_norm(twin.conv2(conv).float(), 2, twin.gn.weight, twin.gn.bias)
        logits = twin.head(torch.relu(normed).flatten(1))
    reference = F.cross_entropy(logits.float(), y)
    reference.backward()
    assert torch.equal(loss, reference.detach())
    for key, got in gradients(model).items():
        assert torch.equal(got, gradients(twin)[key])


@pytest.mark.parametrize("name", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize("make", [Cnn, Gpt])
def test_gradients_are_within_the_compute_format_of_float32(name: str, make: type[nn.Module]) -> None:
    batch = images() if make is Cnn else tokens()
    reference, plain, _ = built(make, policy_config("fp32"))
    pass_through(reference, plain, batch)
    cfg = policy_config(name)
    model, policy, _ = built(make, cfg)
    with switched(cfg):
        pass_through(model, policy, batch)
    whole = torch.cat([g.flatten() for g in gradients(reference).values()]).norm()
    for key, want in gradients(reference).items():
        assert (gradients(model)[key] - want).norm() <= 8 * format_of(cfg.compute).unit_roundoff * whole


@pytest.mark.parametrize("name", POLICIES)
def test_a_pass_without_gradients_before_one_with_them_loses_none(name: str) -> None:
    cfg = policy_config(name)
    model, policy, _ = built(Gpt, cfg)
    batch = tokens()
    with policy.evaluate():
        model(batch[0])
    pass_through(model, policy, batch)
    assert set(gradients(model)) == {n for n, p in model.named_parameters() if p.requires_grad}


def test_tied_weights_stay_tied_and_appear_once() -> None:
    for name in POLICIES:
        model, policy, _ = built(Gpt, policy_config(name))
        assert model.head.weight is model.embed.weight
        assert len({id(w) for w in policy.weights}) == len(policy.weights) == len(policy.masters)
        assert policy.names.count("embed.weight") == 1
        assert "head.weight" not in policy.names


@pytest.mark.parametrize("name", POLICIES)
def test_float32_evaluation_uses_the_full_weights_and_leaves_nothing_behind(name: str) -> None:
    torch.manual_seed(0)
    reference = Cnn().eval()
    model, policy, _ = built(Cnn, policy_config(name))
    model.eval()
    x, _ = images()
    before = {k: (v.dtype, v.data_ptr()) for k, v in model.state_dict().items()}
    with policy.evaluate("fp32"):
        got = model(x)
    keeps = policy_config(name).param == "float32" or policy_config(name).master is not None
    if not keeps:
        reference.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    assert torch.equal(got, reference(x))
    assert not got.requires_grad
    assert {k: (v.dtype, v.data_ptr()) for k, v in model.state_dict().items()} == before


@pytest.mark.parametrize("name", POLICIES)
def test_evaluation_in_the_same_precision_is_the_training_forward(name: str) -> None:
    model, policy, _ = built(Gpt, policy_config(name))
    batch = tokens()
    with policy.evaluate("same"):
        got = model(batch[0])
    with policy.forward():
        want = model(batch[0])
    assert torch.equal(got, want)
    assert not got.requires_grad


def test_an_unknown_evaluation_precision_is_refused() -> None:
    _, policy, _ = built(Cnn, policy_config("bf16"))
    with pytest.raises(PrecisionError, match="same or fp32"), policy.evaluate("half"):
        pass


def test_float32_costs_nothing_and_native_contexts_are_made_once() -> None:
    _, plain, _ = built(Cnn, policy_config("fp32"))
    assert plain.forward() is plain.backward()
    with plain.forward():
        assert not torch.is_autocast_enabled("cpu")
    _, policy, _ = built(Cnn, policy_config("bf16"))
    assert policy.forward() is policy.forward()


class TurnsItself(nn.Module):
    """A model whose own code chooses formats."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4).half()
        self.b = nn.Linear(4, 4).double()
        self.register_buffer("scale", torch.ones(4, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x.to(self.a.weight.dtype)).to(self.b.weight.dtype)) * self.scale


@pytest.mark.parametrize("name", POLICIES)
def test_a_model_that_chose_other_formats_itself_is_brought_to_the_policys(name: str) -> None:
    cfg = policy_config(name)
    model, policy, _ = built(TurnsItself, cfg)
    assert {p.dtype for p in model.parameters()} == {getattr(torch, cfg.param)}
    assert model.scale.dtype == torch.float32
    with policy.forward():
        out = model(torch.randn(2, 4))
    with policy.backward():
        out.float().sum().backward()
    assert len(gradients(model)) == 4


def test_frozen_weights_are_no_weights_of_the_policy_and_still_stored_as_it_says() -> None:
    def frozen() -> nn.Module:
        model = Cnn()
        model.conv.requires_grad_(False)
        return model

    model, policy, _ = built(frozen, policy_config("fp16_master"))
    assert not any(name.startswith("conv.") for name in policy.names)
    assert model.conv.weight.dtype == torch.float16


def test_a_policy_wants_known_kinds_of_ops() -> None:
    cfg = policy_config("bf16", keep=["norms"])
    with pytest.raises(PrecisionError, match="did you mean `norm`"):
        install(Cnn(), cfg, resolve(cfg, CPU))


def test_the_native_way_can_be_forced_for_comparison() -> None:
    cfg = policy_config("fp16")
    native = Mechanism("float16", "native", "for the test", "cpu")
    torch.manual_seed(0)
    model = Cnn()
    policy = install(model, cfg, native)
    emulated, other, _ = built(Cnn, cfg)
    got = pass_through(model, policy, images()).item()
    want = pass_through(emulated, other, images()).item()
    assert got == pytest.approx(want, rel=16 * format_of("float16").unit_roundoff)


def test_custom_norm_layers_are_known_by_their_name_and_shape() -> None:
    class RmsNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale

    class NormalizedLinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight)

    model, policy, _ = built(lambda: nn.Sequential(RmsNorm(), NormalizedLinear()), policy_config("fp16_true"))
    assert [p.dtype for p in model.parameters()] == [torch.float32, torch.float16]
    with policy.forward():
        assert model(torch.full((2, 4), 300.0)).isfinite().all()


def test_policies_of_one_process_do_not_disturb_one_another() -> None:
    def losses(order: list[str]) -> dict[str, Any]:
        return {name: pass_through(*built(Gpt, policy_config(name))[:2], tokens()).item() for name in order}

    assert losses(POLICIES) == losses(POLICIES[::-1])


def test_weights_beyond_the_stored_format_are_named() -> None:
    def huge() -> nn.Module:
        model = Cnn()
        with torch.no_grad():
            model.head.weight[0, 0] = 1e5
        return model

    with pytest.raises(PrecisionError, match="65504") as error:
        built(huge, policy_config("fp16_master"))
    assert "head.weight" in str(error.value)
    built(huge, policy_config("bf16_true"))
    built(huge, policy_config("fp16_master", layers=rules(("head", "float32"))))


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32", "fp8", "fp8_delayed", "mxfp8", "int8"])
def test_a_policy_can_be_switched_to_plain_float32_and_back(precision: str) -> None:
    def passed(kit: Kit) -> list[torch.Tensor]:
        attempt, _ = kit.step.backward([batch(0)])
        grads = [w.grad / kit.scaler.scale for w in kit.policy.weights if w.grad is not None]
        return [attempt.loss_sum, *grads]

    rules = () if precision == "tf32" else ("precision.layers=[{match: head, format: float32}]",)
    kit, plain = Kit(f"precision={precision}", *rules), Kit("precision=fp32")
    before = passed(kit)
    kit.policy.in_float32(True)
    full = passed(kit)
    kit.policy.in_float32(False)
    assert all(torch.equal(a, b) for a, b in zip(full, passed(plain), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, full, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, passed(kit), strict=True))
