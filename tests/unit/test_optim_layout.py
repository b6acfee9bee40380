"""Fused kernels and the order of memory: the same update bit by bit in any layout, no gradient copied to no use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mpt.config.compose import compose
from mpt.optim import build_optimizer
from mpt.optim._layout import in_memory_order, is_dense, laid_out_as

Layout = Callable[[Tensor], Tensor]
SHAPE = (8, 16, 3, 3)
LAYOUTS: dict[str, Layout] = {
    "rows": lambda x: x.contiguous(),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "backwards": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "with gaps": lambda x: torch.stack([x, -x], -1)[..., 0],
}
WORDS = {
    "adamw": ["optimizer=adamw"],
    "adam": ["optimizer=adam"],
    "sgd": ["optimizer=sgd", "optimizer.momentum=0.9"],
    "plain sgd": ["optimizer=sgd", "optimizer.momentum=0"],
}


def after_steps(words: list[str], of_weight: Layout, of_grad: Layout) -> list[Tensor]:
    """The weight, and a gradient that was divided, after steps of which one is skipped."""
    made = torch.Generator().manual_seed(0)
    weight, other = of_weight(torch.randn(SHAPE, generator=made)), torch.ones(5)
    optimizer = build_optimizer(compose([*words, "optimizer.fused=true"]).optimizer, [other, weight], "float32")
    for step in range(4):
        grad = of_grad(torch.randn(SHAPE, generator=made))
        found = torch.tensor(float(step == 2))
        optimizer.step([torch.ones(5) if step else None, grad], torch.tensor(0.1), torch.tensor(2.0), found)
    return [weight, other, *optimizer.state_tensors()]


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("weight", ["channels_last", "backwards"])
@pytest.mark.parametrize("grad", LAYOUTS)
def test_an_update_is_the_same_in_any_layout(name: str, weight: str, grad: str) -> None:
    """torch 2.14's own go wrong in silence on a CPU where the weight's layout is not the gradient's."""
    wanted = after_steps(WORDS[name], LAYOUTS["rows"], LAYOUTS["rows"])
    for got, want in zip(after_steps(WORDS[name], LAYOUTS[weight], LAYOUTS[grad]), wanted, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", WORDS)
def test_no_gradient_is_copied(name: str) -> None:
    weight = LAYOUTS["channels_last"](torch.ones(SHAPE))
    optimizer = build_optimizer(compose([*WORDS[name], "optimizer.fused=true"]).optimizer, [weight], "float32")
    grad, lr, found = LAYOUTS["channels_last"](torch.ones(SHAPE)), torch.tensor(0.1), torch.tensor(0.0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as seen:
        optimizer.step([grad], lr, None, found)
    names = {event.key for event in seen.key_averages()}
    assert any(found.startswith("aten::_fused") for found in names)
    assert not names & {"aten::clone", "aten::contiguous"}


def test_the_order_of_memory() -> None:
    x = torch.arange(1152.0).reshape(SHAPE)
    assert [is_dense(layout(x)) for layout in LAYOUTS.values()] == [True, True, True, False]
    assert is_dense(torch.ones(1, 4, 1))
    assert is_dense(torch.ones(()))
    assert is_dense(torch.ones(0, 4))
    assert not is_dense(torch.ones(4, 1).expand(4, 3))
    assert not is_dense(torch.ones(6)[::2])
    flat = in_memory_order(LAYOUTS["channels_last"](x))
    assert torch.equal(flat, x.permute(0, 2, 3, 1).flatten())
    for layout in LAYOUTS.values():
        assert torch.equal(in_memory_order(laid_out_as(layout(x), flat.view(8, 3, 3, 16).permute(0, 3, 1, 2))), flat)
