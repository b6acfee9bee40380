"""Inf and NaN are followed back to the op, line and module that made them of finite numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mpt.config.compose import compose
from mpt.plan.facts import probe
from mpt.precision.capability import resolve
from mpt.precision.origins import Origin, Origins
from mpt.precision.policy import install

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Does(nn.Module):
    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)


def forward(f: Callable[[Tensor], Tensor], x: Tensor = X) -> tuple[Origin | None, Tensor]:
    model = nn.Sequential(Does(f))
    with Origins(model) as origins:
        out = model(x)
    return origins.of(out), out


@pytest.mark.parametrize(
    ("f", "op", "made", "of"),
    [
        (lambda x: x / (x - x), "div", "inf", "zero"),
        (lambda x: (x * 1e38) * 100, "mul", "inf", "finite"),
        (lambda x: (x.half() * 3e4 * 4).float(), "mul", "inf", "finite"),
        (lambda x: x.sqrt() + 1, "sqrt", "nan", "finite"),
        (lambda x: (x.masked_fill(x < 2, float("-inf"))).softmax(-1), "softmax", "nan", "inf"),
        (lambda x: (x + torch.tensor([float("-inf")])).log_softmax(-1), "log_softmax", "nan", "inf"),
        (lambda x: x.clone().mul_(1e39).sub_(3), "mul", "inf", "finite"),
    ],
    ids=["div", "overflow", "half", "sqrt", "mask", "mask_given", "in_place"],
)
def test_the_first_op_is_named(f: Callable[[Tensor], Tensor], op: str, made: str, of: str) -> None:
    origin, _ = forward(f)
    assert origin is not None
    assert (origin.op, origin.made, origin.of) == (op, made, of)
    assert (origin.phase, origin.module) == ("forward", "0")
    assert origin.line.startswith(Path(__file__).name)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.masked_fill(x < 0, float("-inf")),
        lambda x: torch.where(x > 0, x, torch.tensor(float("inf"))),
        lambda x: x + torch.full((4,), float("inf")),
    ],
    ids=["fill", "where", "full"],
)
def test_what_the_code_wrote_itself_has_no_origin(f: Callable[[Tensor], Tensor]) -> None:
    origin, out = forward(f)
    assert origin is None
    assert not out.isfinite().all()


def test_inf_in_the_batch_has_no_origin_and_a_mask_that_was_applied_leaves_none() -> None:
    assert forward(lambda x: x * 2 + 1, torch.full((2, 4), float("nan")))[0] is None
    origin, out = forward(lambda x: x.masked_fill(x < 0, float("-inf")).softmax(-1)[1:] + torch.log(x[1:]))
    assert origin is None
    assert out.isfinite().all()


def test_inf_that_a_later_op_hides_is_not_blamed_for_another_ones_nan() -> None:
    def f(x: Tensor) -> Tensor:
        hidden = torch.where(x > 0, x.clamp(min=0).log(), 0)  # log(0) is -inf and is not taken
        return hidden + (x - 5).sqrt()

    origin, _ = forward(f)
    assert origin is not None
    assert origin.op == "sqrt"


def test_a_gradient_without_a_finite_value_goes_back_to_the_op_that_it_is_of() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Does(lambda x: x.relu().sub(x.relu()).pow(0.5)))
    with Origins(model) as origins:
        model(X).sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    origin = origins.first_of(grads)
    assert origin is not None
    assert (origin.phase, origin.module, origin.op) == ("backward", "1", "pow")
    assert origin.line.startswith(Path(__file__).name)
    assert "the gradient of `pow` in module `1`" in origin.told()


def test_an_emulated_product_that_overflows_is_named_and_not_the_cast_that_rounds_it() -> None:
    cfg = compose(["precision=fp16"]).precision
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.fill_(300.0)
        model[1].weight.fill_(300.0)
    policy = install(model, cfg, resolve(cfg, probe("cpu")))
    with Origins(model) as origins, policy.forward():
        out = model(torch.ones(2, 4))
    origin = origins.of(out)
    assert origin is not None
    assert (origin.op, origin.module, origin.made) == ("addmm", "1", "inf")
    assert origin.output is not None
    assert origin.output["format"] == "float16"
    assert "precision.layers=[{match: 1, format: float32}]" in origin.told()


def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with Origins(model):
        model(X)
    assert not model._forward_hooks
    assert not model[0]._forward_pre_hooks
