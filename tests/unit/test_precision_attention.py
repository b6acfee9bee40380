"""Attention with low-bit operands: against a hand-written reference, torch's own, the plan and the audit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.config.check import check
from mpt.config.compose import compose
from mpt.config.schema import LayerRule, PrecisionConfig
from mpt.errors import PrecisionError
from mpt.formats.attention import attention_of
from mpt.formats.operand import parse
from mpt.formats.quantise import quantise
from mpt.precision import Auditor, assign, install, resolve
from mpt.precision.low.attention import attend
from tests.unit._precision_kit import CPU, policy_config

B, H, L, S, D = 2, 3, 8, 8, 16
HALF = torch.bfloat16
FP8 = dict.fromkeys(("query", "key", "probability", "value"), "e4m3/tensor")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(HALF)


def inputs(length: int = L, heads: int = H) -> tuple[Tensor, Tensor, Tensor]:
    made = (drawn(B, H, length, D), drawn(B, heads, S, D, seed=1), drawn(B, heads, S, D, seed=2))
    return tuple(t.requires_grad_() for t in made)  # type: ignore[return-value]


@pytest.mark.parametrize("way", ["e4m3/tensor", "e5m2/row", "e4m3/mx", "e2m1/nv", "int8/row"])
def test_products_gradients_and_softmax_are_those_of_a_hand_written_reference(way: str) -> None:
    operands = attention_of(dict.fromkeys(FP8, way))
    assert operands is not None
    q, k, v = inputs()
    out = attend(operands, HALF, q, k, v, is_causal=True)
    g = drawn(B, H, L, D, seed=3)
    out.backward(g)

    op = parse(way, "x")
    flat = [t.detach().reshape(B * H, -1, D) for t in (q, k, v)]
    qq, kk, vv = quantise(flat[0], op), quantise(flat[1], op), quantise(flat[2].transpose(1, 2), op).transpose(1, 2)
    scores = (qq @ kk.transpose(1, 2) / math.sqrt(D)).masked_fill(torch.ones(L, S).triu(1).bool(), -math.inf)
    p = scores.softmax(-1)
    pp = quantise(p.to(HALF), op)
    wanted = (pp @ vv).to(HALF)
    assert torch.allclose(out.detach().reshape_as(wanted).float(), wanted.float(), rtol=2**-7, atol=1e-6)

    dout = g.reshape(B * H, L, D).float()
    dp = (dout @ vv.transpose(1, 2)).to(HALF).float()
    ds = (p * (dp - (dp * p).sum(-1, keepdim=True)) / math.sqrt(D)).to(HALF).float()
    grads = [ds @ kk, ds.transpose(1, 2) @ qq, pp.transpose(1, 2) @ dout]
    for tensor, reference in zip((q, k, v), grads, strict=True):
        assert tensor.grad is not None
        got = tensor.grad.reshape_as(reference).float()
        assert (got - reference).abs().max() <= 2**-7 * reference.abs().max()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.ones(L, S, dtype=torch.bool).tril()},
        {"attn_mask": torch.linspace(-2, 0, L * S).view(L, S)},
        {"attn_mask": torch.arange(L * S).view(L, S) >= S},  # the first query sees nothing
        {"enable_gqa": True},
    ],
)
def test_with_operands_left_high_it_is_torch_s_attention(options: dict[str, Any]) -> None:
    operands = attention_of({"query": "e5m10/none"})
    assert operands is not None  # float16's mantissa: exact for what bfloat16 holds in this range
    q, k, v = inputs(heads=1 if options.get("enable_gqa") else H)
    got = attend(operands, HALF, q, k, v, **options)
    wanted = F.scaled_dot_product_attention(*(t.float() for t in (q, k, v)), **options)
    assert (got.float() - wanted).abs().max() <= 4 * 2**-8 * v.abs().max()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


class Mixer(Attention):
    """A name that says nothing."""


def net(kind: type[nn.Module] = Attention) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(kind(), nn.Linear(32, 32))


def asked(attention: dict[str, str] | None = None, *rules: LayerRule) -> PrecisionConfig:
    return policy_config("bf16", options={"attention": attention or {}}, layers=list(rules))


def test_it_is_off_by_default_and_by_policy_in_plan_pass_and_audit() -> None:
    x = torch.randn(2, 8, 32)
    outs = []
    for cfg in (asked(), asked(FP8)):
        model, mechanism = net(), resolve(cfg, CPU)
        rows, policy = assign(model, cfg, mechanism), install(model, cfg, mechanism)
        planned = {row.name: row for row in rows}
        assert ("0" in planned) == bool(outs)
        with Auditor(model, rows, cfg, mechanism) as auditor:
            with policy.forward():
                out = model(x)
            with policy.backward():
                out.float().square().sum().backward()
        audit = auditor.result()
        assert audit.verdict == "match", audit.rows
        outs.append(out)
        with policy.evaluate("fp32"):
            assert torch.equal(model(x), net()(x))
    row = next(row for row in audit.rows if row.name == "0")
    assert (row.planned, row.forward) == ("e4m3/tensor", ("e4m3/tensor",))
    assert set(row.backward) == {"bfloat16", "e4m3/tensor"}
    assert planned["0"].how == "emulated"
    assert not torch.equal(*outs)


def test_the_audit_sees_that_attention_was_not_what_was_planned() -> None:
    cfg = asked(FP8)
    model, mechanism = net(), resolve(cfg, CPU)
    rows = assign(model, cfg, mechanism)
    policy = install(model, asked(dict.fromkeys(FP8, "e5m2/tensor")), mechanism)
    with Auditor(model, rows, cfg, mechanism) as auditor, policy.forward():
        model(torch.randn(2, 8, 32)).float().sum().backward()
    assert "forward multiplied e5m2/tensor, planned e4m3/tensor" in str(auditor.result().rows)


def test_a_rule_asks_for_it_by_class_and_one_that_finds_no_attention_is_refused() -> None:
    rule = LayerRule("*", "bfloat16", type="Mixer", attention=FP8)
    cfg = asked(None, rule)
    rows = {row.name: row for row in assign(net(Mixer), cfg, resolve(cfg, CPU))}
    assert rows["0"].compute == "e4m3/tensor"
    with pytest.raises(PrecisionError, match=r"precision.layers\[0\].attention: `1` matches no module that attends"):
        assign(net(), asked(None, LayerRule("1", "bfloat16", attention=FP8)), resolve(cfg, CPU))
    with pytest.raises(PrecisionError, match="no module of this model is called attention"):
        assign(net(Mixer), asked(FP8), resolve(cfg, CPU))


def test_bad_operands_are_refused_before_anything_is_built() -> None:
    words = ["precision=fp8", "precision.attention.query=e4m3/tensr", "precision.attention.key=e4m3/delayed"]
    problems = {p.where: str(p) for p in check(compose(words))}
    assert "did you mean `tensor`" in problems["precision.attention.query"]
    assert "no `same`, delayed scale" in problems["precision.attention.key"]
