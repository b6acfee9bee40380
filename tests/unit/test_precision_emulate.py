"""Emulated formats: real half tensors between ops, float32 inside them, one rounding at the end; TF32 on operands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import grad
from torch.nn import functional as F

from mpt.formats import format_of
from mpt.formats.rounding import round_tfloat32
from mpt.precision.emulate import Emulation
from tests.unit._precision_kit import Gpt, built, images, pass_through, policy_config, switched, tokens

HALF = torch.float16


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def vector(seed: int) -> Tensor:
    return numbers(16, seed=seed)


OPS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "mm": (torch.mm, (numbers(6, 16), numbers(16, 5, seed=1))),
    "addmm": (torch.addmm, (numbers(5, seed=2), numbers(6, 16), numbers(16, 5, seed=1))),
    "bmm": (torch.bmm, (numbers(2, 6, 16), numbers(2, 16, 5, seed=1))),
    "baddbmm": (torch.baddbmm, (numbers(2, 6, 5, seed=2), numbers(2, 6, 16), numbers(2, 16, 5, seed=1))),
    "mv": (torch.mv, (numbers(6, 16), vector(1))),
    "addmv": (torch.addmv, (numbers(6, seed=2), numbers(6, 16), vector(1))),
    "dot": (torch.dot, (vector(0), vector(1))),
    "linear": (F.linear, (numbers(2, 6, 16), numbers(5, 16, seed=1), numbers(5, seed=2))),
    "matmul": (torch.matmul, (numbers(2, 3, 6, 16), numbers(16, 5, seed=1))),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), (numbers(2, 6, 16), numbers(2, 5, 16, seed=1))),
    "conv1d": (F.conv1d, (numbers(2, 4, 9), numbers(6, 4, 3, seed=1), numbers(6, seed=2))),
    "conv2d": (F.conv2d, (numbers(2, 4, 9, 9), numbers(6, 4, 3, 3, seed=1), numbers(6, seed=2))),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4), (numbers(2, 4, 9, 9), numbers(4, 1, 3, 3, seed=1))),
    "conv3d": (F.conv3d, (numbers(1, 2, 5, 5, 5), numbers(3, 2, 3, 3, 3, seed=1))),
    "transposed": (F.conv_transpose2d, (numbers(2, 4, 5, 5), numbers(4, 6, 3, 3, seed=1))),
    "attention": (F.scaled_dot_product_attention, tuple(numbers(2, 2, 8, 16, seed=s) for s in range(3))),
}


def values_and_gradients(run: Callable[..., Tensor], operands: list[Tensor], up: Tensor) -> list[Tensor]:
    out = run(*operands)
    return [out, *grad(out, operands, up.to(out.dtype))]


@pytest.mark.parametrize("name", list(OPS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_product_is_the_float32_one_rounded_once_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    run, operands = OPS[name]
    half = [t.to(dtype).requires_grad_() for t in operands]
    wide = [t.detach().float().requires_grad_() for t in half]
    up = torch.ones_like(run(*wide)).to(dtype)
    with Emulation("float16" if dtype == torch.float16 else "bfloat16"):
        got = values_and_gradients(run, half, up)
    want = values_and_gradients(run, wide, up)
    exact = name != "attention"  # its backward starts from a result that is already rounded
    for g, w in zip(got if exact else got[:1], want, strict=False):
        assert g.dtype == dtype
        assert torch.equal(g, w.to(dtype))


def test_the_gradient_of_emulated_attention_is_within_the_rounding_of_its_result() -> None:
    run, operands = OPS["attention"]
    half = [t.half().requires_grad_() for t in operands]
    wide = [t.detach().float().requires_grad_() for t in half]
    up = torch.ones_like(wide[0])
    with Emulation("float16"):
        got = values_and_gradients(run, half, up)
    want = values_and_gradients(run, wide, up)
    u = format_of("float16").unit_roundoff
    for g, w in zip(got, want, strict=True):
        assert (g.float() - w).abs().max() <= 8 * u * w.abs().max()


@pytest.mark.parametrize("name", [n for n in OPS if n not in ("attention", "mv", "addmv", "dot")])
def test_tfloat32_rounds_the_operands_and_nothing_else(name: str) -> None:
    run, operands = OPS[name]
    added = {"addmm": 0, "baddbmm": 0, "linear": 2, "conv1d": 2, "conv2d": 2}.get(name)
    leaves = [t.clone().requires_grad_() for t in operands]
    rounded = [t.clone() if i == added else round_tfloat32(t) for i, t in enumerate(operands)]
    rounded = [t.requires_grad_() for t in rounded]
    up = round_tfloat32(numbers(*run(*operands).shape, seed=9))
    with Emulation("tfloat32"):
        got = values_and_gradients(run, leaves, up)
    want = values_and_gradients(run, rounded, up)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == torch.float32
        assert torch.equal(g, w)


def test_products_with_a_vector_stay_float32_as_on_tensor_cores() -> None:
    a, v = numbers(6, 16), vector(1)
    with Emulation("tfloat32"):
        got = (a @ v, v.dot(v))
    assert torch.equal(got[0], a @ v)
    assert torch.equal(got[1], v.dot(v))


def test_tfloat32_rounds_the_gradient_that_comes_in() -> None:
    x, w = numbers(6, 16).requires_grad_(), round_tfloat32(numbers(16, 5, seed=1)).requires_grad_()
    up = numbers(6, 5, seed=2)
    with Emulation("tfloat32"):
        (got,) = grad(x @ w, x, up)
    assert torch.equal(got, round_tfloat32(up) @ w.detach().t())
    assert not torch.equal(got, up @ w.detach().t())


def test_what_overflows_half_is_infinite_as_in_half() -> None:
    a = torch.full((1, 4), 200.0, dtype=HALF)
    with Emulation("float16"):
        assert (a @ a.t()).item() == float("inf")


def test_sums_that_pass_through_more_than_half_holds_are_right() -> None:
    a = torch.tensor([[300.0, 300.0]], dtype=HALF)
    b = torch.tensor([[300.0], [-300.0]], dtype=HALF)
    with Emulation("float16"):
        assert (a @ b).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operands_in_other_formats_pass_untouched(dtype: torch.dtype) -> None:
    a = numbers(4, 4).to(dtype)
    with Emulation("float16"):
        got = a @ a
    assert torch.equal(got, a @ a)


def test_channels_last_survives_emulated_convolution_both_ways() -> None:
    x = numbers(2, 8, 9, 9).half().contiguous(memory_format=torch.channels_last).requires_grad_()
    w = numbers(8, 8, 3, 3, seed=1).half().contiguous(memory_format=torch.channels_last).requires_grad_()
    with Emulation("float16"):
        y = F.conv2d(x, w)
        gx, gw = grad(y, (x, w), torch.ones_like(y))
    for t in (y, gx, gw):
        assert t.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("make", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("compute", ["float16", "tfloat32"])
def test_recurrent_layers_run_emulated_close_to_float32(make: type[torch.nn.RNNBase], compute: str) -> None:
    name = {"float16": "fp16", "tfloat32": "tf32"}[compute]
    cfg = policy_config(name)
    model, policy, _ = built(lambda: make(8, 8, batch_first=True), cfg)
    x = numbers(2, 5, 8)
    with policy.forward():
        y = model(x)[0]
    with policy.backward():
        y.float().sum().backward()
    plain, *_ = built(lambda: make(8, 8, batch_first=True), policy_config("fp32"))
    want = plain(x)[0]
    want.sum().backward()
    u = format_of(compute).unit_roundoff
    assert (y.float() - want).abs().max() <= 40 * u
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert 0 < (a.grad - b.grad).abs().max() <= 100 * u * b.grad.abs().max()


def test_emulated_attention_net_follows_float32_within_the_format() -> None:
    losses = {}
    for name in ("fp32", "fp16", "tf32"):
        cfg = policy_config(name)
        model, policy, _ = built(Gpt, cfg)
        with switched(cfg):
            losses[name] = pass_through(model, policy, tokens()).item()
    for name, fmt in (("fp16", "float16"), ("tf32", "tfloat32")):
        assert 0 < abs(losses[name] - losses["fp32"]) <= 20 * format_of(fmt).unit_roundoff * losses["fp32"]


def test_emulation_that_stands_still_multiplies_float32() -> None:
    a = numbers(8, 8)
    emulation = Emulation("tfloat32")
    with emulation, emulation.switched(False):
        assert torch.equal(a @ a, a @ a)
        inside = a @ a
    assert torch.equal(inside, a @ a)
    with emulation:
        assert not torch.equal(a @ a, inside)


def test_nothing_is_emulated_outside() -> None:
    cfg = policy_config("tf32")
    model, policy, _ = built(Gpt, cfg)
    batch = tokens()
    before = model(batch[0])
    pass_through(model, policy, batch)
    assert torch.equal(model(batch[0]), before)
    assert images()[0].dtype == torch.float32
