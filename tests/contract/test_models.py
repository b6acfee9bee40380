"""What every model promises: it builds for its data, learns on the CPU in float32, and explains what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mpt import registry
from mpt.errors import ConfigError, ModelError
from mpt.types import DataSpec

OPTIONS: dict[str, dict[str, Any]] = {
    "small_cnn": {"width": 8},
    "mlp": {"width": 16},
    "gpt": {"layers": 2, "heads": 2, "width": 32, "context": 16},
    "torchvision": {"arch": "resnet18"},
    "timm": {"arch": "resnet10t"},
    "custom": {"path": f"{Path(__file__).parent / '_user_model.py'}:make", "kwargs": {"hidden": 12}},
}
NAMES = sorted(registry.names("models"))


def spec_for(name: str, num_classes: int = 7) -> DataSpec:
    """The smallest data that the model takes."""
    wanted = registry.load("models", name).input_spec(OPTIONS[name])
    kind = wanted.kind or "images"
    side = wanted.size or wanted.min_size
    shape = (wanted.context,) if kind == "tokens" else (wanted.channels or 1, side, side)
    return DataSpec("made up", kind, shape, num_classes, 10, 10, (), "")


def inputs_for(spec: DataSpec, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if spec.kind == "tokens":
        return torch.randint(spec.num_classes, (n, *spec.shape), generator=generator)
    return torch.randn(n, *spec.shape, generator=generator)


def build(name: str, spec: DataSpec, **changes: Any) -> nn.Module:
    model = registry.load("models", name).build({**OPTIONS[name], **changes}, spec)
    assert isinstance(model, nn.Module)
    return model


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    assert request.param in OPTIONS, f"give `{request.param}` small options here"
    if request.param == "timm":
        pytest.importorskip("timm", reason="an extra that is not installed")
    return str(request.param)


def test_a_model_has_one_logit_for_each_class(name: str) -> None:
    spec = spec_for(name)
    output = build(name, spec)(inputs_for(spec, 3))
    places = spec.shape if spec.kind == "tokens" else ()
    assert tuple(output.shape) == (3, *places, spec.num_classes)
    assert output.dtype == torch.float32


def test_every_weight_gets_a_finite_gradient(name: str) -> None:
    spec = spec_for(name)
    model = build(name, spec)
    model(inputs_for(spec, 4)).square().mean().backward()
    for weight_name, weight in model.named_parameters():
        assert weight.grad is not None, weight_name
        assert weight.grad.isfinite().all(), weight_name


def test_weights_are_float32_on_the_cpu_and_follow_the_global_seed(name: str) -> None:
    spec = spec_for(name)
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(dict(build(name, spec).named_parameters()))
    assert all(w.dtype == torch.float32 and w.device.type == "cpu" for w in states[0].values())
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert any(not torch.equal(states[0][k], states[2][k]) for k in states[0])


def test_a_model_can_be_planned_without_memory(name: str) -> None:
    spec = spec_for(name)
    with torch.device("meta"):
        planned = build(name, spec)
    real = build(name, spec)
    assert all(w.is_meta for w in planned.parameters())
    assert [w.shape for w in planned.parameters()] == [w.shape for w in real.parameters()]


def test_an_unknown_option_is_refused_by_its_key(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.widht: no such option"):
        build(name, spec_for(name), widht=3)


def test_data_of_the_other_kind_are_refused_with_what_would_fit(name: str) -> None:
    wanted = registry.load("models", name).input_spec(OPTIONS[name])
    if wanted.kind is None:
        pytest.skip("a user's model takes either")
    shape, kind, fits = {
        "images": ((16,), "tokens", "model=gpt"),
        "tokens": ((1, 8, 8), "images", "model=small_cnn"),
    }[wanted.kind]
    with pytest.raises(ModelError, match="model, data") as refused:
        build(name, DataSpec("made up", kind, shape, 7, 10, 10, (), ""))
    assert fits in str(refused.value)


def test_a_model_says_whether_it_is_convolutional(name: str) -> None:
    assert registry.load("models", name).CONVOLUTIONAL in (True, False)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_images_may_lie_either_way(name: str, layout: str) -> None:
    spec = spec_for(name)
    if spec.kind == "tokens":
        pytest.skip("tokens have no channels")
    model = build(name, spec).eval()
    x = inputs_for(spec, 2)
    plain = model(x)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    assert torch.allclose(model(x), plain, rtol=1e-4, atol=1e-5)
