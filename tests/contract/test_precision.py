"""Every precision in conf/, on a convolutional net and a transformer of the registry: installs, audits, comes back."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt import registry
from mpt.config import catalog
from mpt.config.compose import compose
from mpt.config.schema import PrecisionConfig
from mpt.precision import Auditor, Mechanism, Policy, assign, flags, install, resolve
from mpt.types import DataSpec, DeviceFacts

CPU = DeviceFacts("cpu", "a CPU", torch.__version__)
CHOICES = sorted(catalog.choices("precision"))
IMAGES = DataSpec("digits", "images", (1, 8, 8), 10, 8, 8, tuple("0123456789"), "x")
TOKENS = DataSpec("text", "tokens", (8,), 16, 8, 8, (), "x")
NETS: dict[str, tuple[DataSpec, dict[str, Any]]] = {
    "small_cnn": (IMAGES, {"width": 4, "dropout": 0.0}),
    "gpt": (TOKENS, {"layers": 1, "heads": 2, "width": 8, "context": 8, "dropout": 0.0}),
}


@cache
def composed(choice: str) -> PrecisionConfig:
    return compose([f"precision={choice}"]).precision


def precision(choice: str) -> PrecisionConfig:
    return copy.deepcopy(composed(choice))


def installed(model_name: str, cfg: PrecisionConfig) -> tuple[nn.Module, Policy, Mechanism]:
    data, options = NETS[model_name]
    torch.manual_seed(0)
    model = registry.load("models", model_name).build(options, data)
    mechanism = resolve(cfg, CPU)
    return model, install(model, cfg, mechanism), mechanism


def batch(model_name: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if model_name == "small_cnn":
        return torch.randn(4, 1, 8, 8, generator=generator), torch.arange(4)
    inputs = torch.randint(0, 16, (2, 8), generator=generator)
    return inputs, inputs


def attempt(model: nn.Module, policy: Policy, data: tuple[Tensor, Tensor]) -> Tensor:
    with policy.forward():
        logits = model(data[0])
    loss = F.cross_entropy(logits.float().flatten(0, -2), data[1].flatten())
    with policy.backward():
        loss.backward()
    policy.gather()
    return loss.detach()


both = pytest.mark.parametrize("model_name", list(NETS))
every = pytest.mark.parametrize("choice", CHOICES)


@every
@both
def test_what_was_planned_is_what_is_seen(choice: str, model_name: str) -> None:
    cfg = precision(choice)
    model, policy, mechanism = installed(model_name, cfg)
    rows = assign(model, cfg, mechanism)
    with flags(cfg, CPU), Auditor(model, rows, cfg, mechanism) as auditor:
        attempt(model, policy, batch(model_name))
    audit = auditor.result()
    assert audit.verdict == "match", [r for r in audit.rows if not r.matches]
    assert audit.loss_format == "float32"


@every
@both
def test_every_trained_weight_gets_a_float32_or_stored_gradient_and_learns(choice: str, model_name: str) -> None:
    cfg = precision(choice)
    model, policy, _ = installed(model_name, cfg)
    data = batch(model_name)
    losses = []
    for _ in range(20):
        losses.append(attempt(model, policy, data).item())
        for master in policy.masters:
            assert master.grad is not None
            assert master.grad.dtype == master.dtype
            with torch.no_grad():
                master -= 0.5 * master.grad
            master.grad = None
        policy.publish()
    assert losses[-1] < 0.7 * losses[0]


@every
@both
def test_norms_and_buffers_stay_float32(choice: str, model_name: str) -> None:
    model, policy, _ = installed(model_name, precision(choice))
    attempt(model, policy, batch(model_name))
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm | nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert {p.dtype for m in norms for p in m.parameters()} == {torch.float32}
    assert {b.dtype for b in model.buffers() if b.is_floating_point()} <= {torch.float32}


@every
@both
def test_state_comes_back_bit_by_bit(choice: str, model_name: str) -> None:
    cfg = precision(choice)
    model, policy, _ = installed(model_name, cfg)
    attempt(model, policy, batch(model_name))
    with torch.no_grad():
        for master in policy.masters:
            master -= 0.1 * torch.randn_like(master)
    policy.publish()
    saved = copy.deepcopy((model.state_dict(), policy.state_dict()))
    other, others, _ = installed(model_name, cfg)
    other.load_state_dict(saved[0])
    others.load_state_dict(saved[1])
    for a, b in zip((*policy.weights, *policy.masters), (*others.weights, *others.masters), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype


@every
@both
def test_evaluation_in_float32_is_the_same_for_every_precision_of_fresh_weights(choice: str, model_name: str) -> None:
    cfg = precision(choice)
    model, policy, _ = installed(model_name, cfg)
    model.eval()
    inputs, _ = batch(model_name)
    with policy.evaluate("fp32"):
        got = model(inputs)
    reference, plain, _ = installed(model_name, precision("fp32"))
    if cfg.param != "float32" and cfg.master is None:
        reference.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in model.state_dict().items()})
    reference.eval()
    with plain.evaluate("same"):
        assert torch.equal(got, reference(inputs))
