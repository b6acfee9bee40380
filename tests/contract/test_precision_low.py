"""Every low-bit policy in conf/, on nets wide enough to be taken: audited, trained, resumed, loadable."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt import registry
from mpt.config import catalog
from mpt.config.compose import compose
from mpt.config.schema import PrecisionConfig
from mpt.precision import Auditor, Policy, assign, flags, install, resolve
from mpt.precision.low.eligible import lowered
from mpt.types import DataSpec, DeviceFacts

CPU = DeviceFacts("cpu", "a CPU", torch.__version__)
COMPOSED = {choice: compose([f"precision={choice}"]).precision for choice in sorted(catalog.choices("precision"))}
LOW = [choice for choice, cfg in COMPOSED.items() if cfg.options.get("gemms")]
NETS: dict[str, tuple[DataSpec, dict[str, Any]]] = {
    "small_cnn": (DataSpec("digits", "images", (1, 8, 8), 10, 8, 8, (), "x"), {"width": 32, "dropout": 0.0}),
    "gpt": (
        DataSpec("text", "tokens", (16,), 32, 8, 8, (), "x"),
        {"layers": 1, "heads": 2, "width": 32, "context": 16, "dropout": 0.0},
    ),
}
every = pytest.mark.parametrize("choice", LOW)
both = pytest.mark.parametrize("model_name", list(NETS))


def made(model_name: str, choice: str) -> tuple[nn.Module, Policy, PrecisionConfig]:
    data, options = NETS[model_name]
    torch.manual_seed(0)
    model = registry.load("models", model_name).build(options, data)
    cfg = copy.deepcopy(COMPOSED[choice])
    return model, install(model, cfg, resolve(cfg, CPU)), cfg


def batch(model_name: str) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    if model_name == "small_cnn":
        return torch.randn(6, 1, 8, 8, generator=draw), torch.arange(6)
    inputs = torch.randint(0, 32, (3, 16), generator=draw)
    return inputs, inputs


def attempt(model: nn.Module, policy: Policy, data: tuple[Tensor, Tensor]) -> float:
    with policy.forward():
        logits = model(data[0])
    loss = F.cross_entropy(logits.float().flatten(0, -2), data[1].flatten())
    with policy.backward():
        loss.backward()
    policy.gather()
    with torch.no_grad():
        for weight in policy.weights:
            assert weight.grad is not None
            weight -= 0.1 * weight.grad
            weight.grad = None
    return loss.item()


def test_there_are_policies_of_every_family() -> None:
    assert {"fp8", "fp8_delayed", "fp8_rowwise", "fp8_block", "mxfp8", "mxfp6", "mxfp4", "nvfp4", "int8"} <= set(LOW)


@every
@both
def test_what_was_planned_is_what_is_seen(choice: str, model_name: str) -> None:
    model, policy, cfg = made(model_name, choice)
    mechanism = resolve(cfg, CPU)
    rows = assign(model, cfg, mechanism)
    low = lowered(model, cfg).gemms
    assert low
    with flags(cfg, CPU), Auditor(model, rows, cfg, mechanism) as auditor:
        attempt(model, policy, batch(model_name))
    audit = auditor.result()
    assert audit.verdict == "match", [r for r in audit.rows if not r.matches]
    seen = {row.name: row for row in audit.rows}
    for name, gemms in low.items():
        assert set(seen[name].forward) == gemms.forward.labels
        assert seen[name].backward


@every
@both
def test_it_learns_and_goes_on_bit_by_bit_from_its_state(choice: str, model_name: str) -> None:
    model, policy, _ = made(model_name, choice)
    data = batch(model_name)
    losses = [attempt(model, policy, data) for _ in range(12)]
    assert losses[-1] < losses[0]
    saved = copy.deepcopy((model.state_dict(), policy.state_dict(), torch.get_rng_state()))
    wanted = [attempt(model, policy, data) for _ in range(3)]
    other, others, _ = made(model_name, choice)
    other.load_state_dict(saved[0])
    others.load_state_dict(saved[1])
    torch.set_rng_state(saved[2])
    assert [attempt(other, others, data) for _ in range(3)] == wanted


@every
def test_names_of_weights_are_those_of_the_plain_model(choice: str) -> None:
    model, _, _ = made("gpt", choice)
    plain = registry.load("models", "gpt").build(NETS["gpt"][1], NETS["gpt"][0])
    assert list(model.state_dict()) == list(plain.state_dict())


@every
def test_evaluation_in_float32_is_that_of_the_plain_model(choice: str) -> None:
    model, policy, _ = made("small_cnn", choice)
    model.eval()
    inputs, _ = batch("small_cnn")
    with policy.evaluate("fp32"):
        got = model(inputs)
    reference, plain, _ = made("small_cnn", "fp32")
    reference.eval()
    with plain.evaluate("same"):
        assert torch.equal(got, reference(inputs))
    with policy.evaluate("same"):
        assert not torch.equal(got, model(inputs).float())
