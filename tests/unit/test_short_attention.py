"""Attention by products of whole matrices: torch's kernel in all that it takes and gives, no less exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mpt.build import make_plan
from mpt.config.compose import compose
from mpt.precision import short_attention as module
from mpt.precision.short_attention import MAX_KEYS, attend, gradients, short_attention
from mpt.precision.switches import float32_through_onednn
from mpt.train.products import cpu_products
from mpt.types import DeviceFacts

SHAPES = [(2, 3, 40, 16, 40), (1, 1, 1, 8, 1), (3, 2, 33, 24, 50), (2, 8, MAX_KEYS, 8, MAX_KEYS)]


@contextmanager
def ours() -> Iterator[None]:
    with float32_through_onednn(), short_attention(True):
        yield


def operands(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """As a model makes them: heads are a transposed view."""
    b, h, length, d, keys = shape
    made = torch.Generator().manual_seed(0)
    sizes = [(b, length, h, d), (b, keys, h, d), (b, keys, h, d), (b, length, h, d)]
    *qkv, grad = (2 * torch.randn(size, generator=made) for size in sizes)
    return [x.to(dtype).transpose(1, 2).requires_grad_() for x in qkv], grad.to(dtype).transpose(1, 2)


def both(qkv: list[Tensor], grad: Tensor, **options: Any) -> list[Tensor]:
    """The result and gradients of F.scaled_dot_product_attention."""
    out = F.scaled_dot_product_attention(*qkv, **options)
    return [out, *torch.autograd.grad(out, qkv, grad)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_no_less_exact_than_torchs_kernel(shape: tuple[int, ...], causal: bool, dtype: torch.dtype) -> None:
    qkv, grad = operands(shape, dtype)
    exact = both([x.detach().double().requires_grad_() for x in qkv], grad.double(), is_causal=causal)
    theirs = both(qkv, grad, is_causal=causal)
    with ours():
        mine = both(qkv, grad, is_causal=causal)
    for a, b, wanted in zip(mine, theirs, exact, strict=True):
        assert a.dtype == dtype
        assert a.stride() == b.stride()
        floor = torch.finfo(dtype).eps * wanted.norm()
        assert (a.double() - wanted).norm() <= 1.5 * (b.double() - wanted).norm() + floor


def test_it_takes_what_it_says_and_leaves_the_rest_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(module, "attend", lambda *args: taken.append(1) or attend(*args))  # type: ignore[func-returns-value]
    monkeypatch.setattr(module, "gradients", lambda *args: taken.append(2) or gradients(*args))  # type: ignore[func-returns-value]

    def by_both(shape: tuple[int, ...], dtype: torch.dtype, **options: Any) -> list[int]:
        taken.clear()
        qkv, grad = operands(shape, dtype)
        theirs = both(qkv, grad, **options)
        assert not taken
        with ours():
            mine = both(qkv, grad, **options)
        for a, b in zip(mine, theirs, strict=True):
            assert (a - b).abs().max() <= 0.03 * b.abs().max()
        return list(taken)

    short, long = (2, 2, 16, 8, 16), (1, 1, 8, 8, MAX_KEYS + 1)
    assert by_both(short, torch.bfloat16, is_causal=True) == [1, 2]
    assert by_both(short, torch.float32, scale=0.3) == [1, 2]
    assert by_both(long, torch.bfloat16) == []
    assert by_both(short, torch.float32, attn_mask=torch.ones(16, 16).tril().bool()) == []
    with short_attention(True):  # MKL multiplies float32
        both(*operands(short, torch.float32), is_causal=True)
        assert taken == []
        both(*operands(short, torch.bfloat16), is_causal=True)
        assert taken == [1, 2]


def test_heads_that_share_keys_are_torchs() -> None:
    q, k = torch.randn(2, 4, 8, 16).bfloat16(), torch.randn(2, 2, 8, 16).bfloat16()
    wanted = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    with ours():
        assert torch.equal(F.scaled_dot_product_attention(q, k, k, enable_gqa=True), wanted)


@pytest.mark.parametrize(
    ("words", "name", "told"),
    [
        (["model=gpt", "data=shakespeare", "model.context=64"], "AMD EPYC", True),
        (["model=gpt", "data=shakespeare", f"model.context={MAX_KEYS + 1}"], "AMD EPYC", False),
        (["model=gpt", "data=shakespeare", "trainer.onednn=false"], "AMD EPYC", False),
        (["model=gpt", "data=shakespeare"], "Intel Xeon", False),
        (["model=small_cnn"], "AMD EPYC", False),
    ],
)
def test_who_gets_it_is_told(words: list[str], name: str, told: bool) -> None:
    cfg = compose([*words, "device=cpu"])
    plan = replace(make_plan(cfg), device=DeviceFacts("cpu", name, "2.14"))
    with cpu_products(cfg, plan) as sentences:
        assert any("attention" in sentence for sentence in sentences) == told
