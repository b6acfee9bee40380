"""Low-bit layers: their three products against float64, convolutions against linears, torchao, plans and audits."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.config.schema import LayerRule, PrecisionConfig
from mpt.errors import PrecisionError
from mpt.formats.operand import gemms_of, parse
from mpt.formats.quantise import quantise
from mpt.precision import Auditor, assign, install, resolve
from mpt.precision.low import conv as conv_module
from mpt.precision.low.eligible import lowered
from mpt.precision.low.layers import LowLayers
from mpt.types import DeviceFacts
from tests.unit._precision_kit import CPU, policy_config

WAYS = ["e4m3/tensor", "e5m2/tensor", "e4m3/row/pow2", "e4m3/block", "e4m3/mx", "e2m3/mx", "e2m1/mx/floor", "e2m1/nv"]
BF16 = 2.0**-8
"""Largest relative error of rounding to bfloat16, and as much again where sums were of another order."""


def gemms(forward: str, backward: str | None = None, words: str = "") -> dict[str, Any]:
    backward = backward or forward
    return {
        "forward": {"activation": forward, "weight": forward},
        "grad_input": {"gradient": backward, "weight": forward},
        "grad_weight": {"gradient": backward + words, "activation": forward + words},
    }


def low_config(products: dict[str, Any], **options: Any) -> PrecisionConfig:
    return policy_config("bf16", options={"gemms": products, **options})


def low(module: nn.Module, products: dict[str, Any]) -> nn.Module:
    """The module, low-bit whatever its size."""
    found = gemms_of(products)
    assert found is not None
    model = nn.Sequential(module)
    LowLayers(model, {"0": found}, torch.bfloat16, 4)
    return model


def run(model: nn.Module, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Result, gradient of the input and gradients of parameters, under autocast as a policy has it."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    out.backward(g)
    return out.detach(), x.grad, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def close(got: Tensor | None, wanted: Tensor, size: Tensor) -> bool:
    """Within bfloat16's rounding of the result and float32's of a sum whose magnitudes add up to `size`."""
    assert got is not None
    return bool(((got.double() - wanted).abs() <= BF16 * wanted.abs() + 1e-6 * size + 1e-30).all())


@pytest.mark.parametrize("way", WAYS)
def test_the_three_products_of_a_linear_equal_float64_of_quantised_operands(way: str) -> None:
    torch.manual_seed(0)
    layer, op = nn.Linear(64, 32), parse(way, "x")
    x, g = torch.randn(96, 64).bfloat16(), torch.randn(96, 32).bfloat16()
    out, grad_x, grads = run(low(copy.deepcopy(layer), gemms(way)), x, g)
    w, b = layer.weight.detach().bfloat16(), layer.bias.detach().bfloat16().double()

    def product(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        a, c = quantise(left, op).double(), quantise(right, op).double()
        return a @ c.t(), a.abs() @ c.abs().t()

    wanted, size = product(x, w)
    assert close(out, wanted + b, size + b.abs())
    assert close(grad_x, *product(g, w.t()))
    assert close(grads["0.weight"], *product(g.t(), x.t()))
    assert close(grads["0.bias"], g.double().sum(0), g.double().abs().sum(0))
    assert grads["0.weight"].dtype == torch.float32


@pytest.mark.parametrize("sums_in_float32", [True, False])
@pytest.mark.parametrize("way", [w for w in WAYS if "/row" not in w])
def test_a_convolution_of_one_tap_is_the_linear_over_pixels(
    way: str, sums_in_float32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPUs of AVX2 alone add images up in bfloat16: there the operands are multiplied in float32."""
    supported = conv_module.sums_in_float32()
    monkeypatch.setattr(conv_module, "sums_in_float32", lambda: sums_in_float32 and supported)
    torch.manual_seed(0)
    conv, linear = nn.Conv2d(64, 32, 1), nn.Linear(64, 32)
    linear.load_state_dict({"weight": conv.weight.detach().view(32, 64), "bias": conv.bias.detach()})
    x, g = torch.randn(4, 64, 4, 5).bfloat16(), torch.randn(4, 32, 4, 5).bfloat16()
    got, grad_x, grads = run(low(conv, gemms(way)), x, g)

    def rows(t: Tensor | None) -> Tensor:
        assert t is not None
        return t.permute(0, 2, 3, 1).reshape(-1, t.shape[1])

    wanted, wanted_x, wanted_w = run(low(linear, gemms(way)), rows(x), rows(g))
    size = torch.ones((), dtype=torch.float64) * 64
    assert close(rows(got), wanted.double(), size)
    assert close(rows(grad_x), wanted_x.double(), size)  # type: ignore[union-attr]
    assert close(grads["0.weight"].view(32, 64), wanted_w["0.weight"].double(), size)
    assert close(grads["0.bias"], wanted_w["0.bias"].double(), size)


@pytest.mark.parametrize("make", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_convolutions_of_any_dimension_stride_and_dilation_have_their_shapes_and_small_errors(make: Any) -> None:
    torch.manual_seed(0)
    plain = make(16, 32, 3, stride=2, padding=2, dilation=2)
    n = len(plain.kernel_size)
    x = torch.randn(2, 16, *[9, 8, 7][:n])
    g = torch.randn(2, 32, *plain(x).shape[2:])
    for products in (gemms("e4m3/tensor"), gemms("e4m3/row"), gemms("e4m3/block"), gemms("e4m3/mx", words="/hadamard")):
        out, grad_x, grads = run(low(copy.deepcopy(plain), products), x, g)
        reference = copy.deepcopy(plain)
        y = x.clone().requires_grad_()
        wanted = reference(y)
        wanted.backward(g)
        pairs = ((out, wanted), (grad_x, y.grad), (grads["0.weight"], reference.weight.grad))
        for a, b in pairs:
            assert a is not None
            assert b is not None
            assert a.shape == b.shape
            assert (a.float() - b).norm() < 0.06 * b.norm()  # E4M3 rounds by 2^-4 at most, so by less together
        assert torch.allclose(grads["0.bias"], reference.bias.grad, atol=0.2)


@pytest.mark.parametrize("images", [16, 5, 40])
def test_rotating_images_leaves_the_gradient_of_a_convolution_as_it_is(images: int) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(16, 16, 3, stride=2, padding=1)
    x, g = torch.randn(images, 16, 6, 6).bfloat16(), torch.randn(images, 16, 3, 3).bfloat16()
    ways = gemms("e5m10/none", words="/hadamard")  # 11 bits and no scale: what is lost is far below bfloat16
    _, _, grads = run(low(copy.deepcopy(plain), ways), x, g)
    plain.double()(x.double()).backward(g.double())
    wanted = plain.weight.grad
    assert wanted is not None
    assert (grads["0.weight"] - wanted).norm() < 2 * BF16 * wanted.norm()


@pytest.mark.parametrize("padding", ["same", "valid", 1])
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
def test_paddings_are_those_of_the_layer(padding: Any, mode: str) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(16, 16, 3, padding=padding, padding_mode=mode)
    x = torch.randint(-3, 4, (2, 16, 6, 6)).float()
    with torch.no_grad():
        plain.weight.copy_(torch.randint(-1, 2, plain.weight.shape))
        plain.bias.zero_()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        got = low(copy.deepcopy(plain), gemms("e4m3/none"))(x)  # small integers are exact
        assert torch.equal(got, plain(x))
        assert torch.equal(low(plain, gemms("e4m3/none"))(x[0]), got[0])


def test_rounding_is_straight_through_for_int8() -> None:
    torch.manual_seed(0)
    ways = {
        "forward": {"activation": "int8/row", "weight": "int8/row"},
        "grad_input": {"gradient": "high", "weight": "same"},
        "grad_weight": {"gradient": "high", "activation": "same"},
    }
    layer, op = nn.Linear(48, 24, bias=False), parse("int8/row", "x")
    x, g = torch.randn(32, 48).bfloat16(), torch.randn(32, 24).bfloat16()
    out, grad_x, grads = run(low(copy.deepcopy(layer), ways), x, g)
    xq, wq = quantise(x, op).double(), quantise(layer.weight.detach().bfloat16(), op).double()
    g64 = g.double()
    assert close(out, xq @ wq.t(), xq.abs() @ wq.abs().t())
    assert close(grad_x, g64 @ wq, g64.abs() @ wq.abs())
    assert close(grads["0.weight"], g64.t() @ xq, g64.abs().t() @ xq.abs())


def test_stochastic_rounding_touches_gradients_only_and_follows_the_seed() -> None:
    ways = gemms("e2m1/nv", "e2m1/nv/stochastic")
    model = low(nn.Linear(64, 32), ways)
    x, g = torch.randn(64, 64), torch.randn(64, 32).bfloat16()
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(run(model, x, g))
    (a, ax, aw), (b, bx, bw), (c, cx, cw) = results
    assert torch.equal(a, b)
    assert torch.equal(a, c)
    assert torch.equal(ax, bx)
    assert torch.equal(aw["0.weight"], bw["0.weight"])
    assert not torch.equal(ax, cx)
    assert not torch.equal(aw["0.weight"], cw["0.weight"])


def test_outside_of_the_policy_a_layer_is_plain() -> None:
    layer = nn.Linear(32, 32)
    x = torch.randn(4, 32)
    assert torch.equal(low(copy.deepcopy(layer), gemms("e2m1/mx"))(x), layer(x))


def test_a_half_policy_of_float16_has_results_of_float16() -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    found = gemms_of(gemms("e4m3/tensor"))
    assert found is not None
    LowLayers(model, {"0": found}, torch.float16, 4)
    with torch.autocast("cpu", dtype=torch.float16):
        assert model(torch.randn(4, 32)).dtype == torch.float16


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_losses_and_gradients_equal_torchaos_emulation(recipe: str, bias: bool) -> None:
    pytest.importorskip("torchao")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128, bias=bias), nn.GELU(), nn.Linear(128, 32, bias=bias)).bfloat16()
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    theirs = convert_to_float8_training(copy.deepcopy(model), config=config)
    way = "e4m3/tensor" if recipe == "tensorwise" else "e4m3/row/pow2"
    ours, found = copy.deepcopy(model), gemms_of(gemms(way, "e5m2/tensor" if recipe == "tensorwise" else way))
    assert found is not None
    LowLayers(ours, {"0": found, "2": found}, torch.bfloat16, 4)
    x, target = torch.randn(48, 64).bfloat16(), torch.randint(0, 32, (48,))
    losses = []
    for net in (theirs, ours):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=net is ours):
            logits = net(x)
        losses.append(F.cross_entropy(logits.float(), target))
        losses[-1].backward()
    pairs = [(p.grad, q.grad) for p, q in zip(theirs.parameters(), ours.parameters(), strict=True)]
    if bias:
        # torchao rounds a second time, after it adds the bias: each logit may differ by that, and the loss by twice it.
        assert (losses[0] - losses[1]).abs() <= 2 * BF16 * logits.abs().max()
        assert all((p - q).float().norm() <= 0.05 * p.float().norm() for p, q in pairs)  # type: ignore[operator, union-attr]
    else:
        assert torch.equal(losses[0], losses[1])
        assert all(torch.equal(p, q) for p, q in pairs)  # type: ignore[arg-type]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.body = nn.Conv2d(32, 32, 3, padding=1)
        self.depth = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.up = nn.ConvTranspose2d(32, 32, 2, 2)
        self.wide = nn.Linear(32, 96)
        self.odd = nn.Linear(96, 40)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.head = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.depth(self.body(self.stem(x)))).flatten(2).transpose(1, 2)
        x, _ = self.attention(x, x, x, need_weights=False)
        return self.head(self.odd(self.wide(x)).mean(1))


def planned(cfg: PrecisionConfig, model: nn.Module | None = None) -> dict[str, Any]:
    model = model or Net()
    return {row.name: row for row in assign(model, cfg, resolve(cfg, CPU))}


def test_layers_that_stay_high_say_why() -> None:
    rows = planned(low_config(gemms("e4m3/mx"), min_weights=2000))
    assert rows["body"].compute == "e4m3/mx"
    assert rows["body"].how == "emulated"
    assert "3 inputs are no multiple of 32" in planned(low_config(gemms("e4m3/mx")))["stem"].reason
    assert "864 weights: too small to gain" in rows["stem"].reason
    assert "grouped" in rows["depth"].reason
    assert "ConvTranspose2d" in rows["up"].reason
    assert "40 outputs are no multiple of 32" in rows["odd"].reason
    assert "MultiheadAttention" in rows["attention"].reason
    high = {n for n, r in rows.items() if r.compute == "bfloat16"}
    assert high == {"stem", "depth", "up", "odd", "attention", "head"}


def test_the_last_layers_stay_high_by_share() -> None:
    rows = planned(low_config(gemms("e4m3/none"), keep_last=0.4), nn.Sequential(*[nn.Linear(32, 32) for _ in range(5)]))
    assert [rows[str(i)].compute for i in range(5)] == ["e4m3"] * 3 + ["bfloat16"] * 2
    assert "last 40%" in rows["4"].reason


def test_kinds_of_layers_can_be_left_out() -> None:
    rows = planned(low_config(gemms("e4m3/tensor"), low_layers=["linear"]))
    assert rows["body"].reason == "the policy leaves convolutions high"
    assert rows["wide"].compute == "e4m3/tensor"


def test_rules_choose_by_first_last_and_size_and_bring_their_own_products() -> None:
    model = nn.Sequential(*[nn.Linear(32, 32 * (1 + i)) if i == 0 else nn.Linear(32, 32) for i in range(6)])
    cfg = low_config(gemms("e4m3/mx"))
    cfg.layers = [
        LayerRule("*", "bfloat16", first=1),
        LayerRule("*", "float32", last=1),
        LayerRule("re:^[23]$", "bfloat16", gemms=gemms("e2m1/nv")),
        LayerRule("*", "bfloat16", type="Linear", below=10),
    ]
    with pytest.raises(PrecisionError, match="none with these first, last or below"):
        planned(cfg, model)
    cfg.layers.pop()
    rows = planned(cfg, model)
    assert [rows[str(i)].compute for i in range(6)] == [
        "bfloat16",
        "e4m3/mx",
        "e2m1/nv",
        "e2m1/nv",
        "e4m3/mx",
        "float32",
    ]


def test_one_weight_of_two_formats_is_refused() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    model[1].weight = model[0].weight
    cfg = low_config(gemms("e4m3/mx"))
    assert set(lowered(model, cfg).gemms) == {"0", "1"}
    cfg.layers = [LayerRule("1", "bfloat16", gemms=gemms("e2m1/nv"))]
    with pytest.raises(PrecisionError, match="shares its weight with `0`"):
        lowered(model, cfg)


def test_a_rule_whose_blocks_do_not_divide_its_layers_is_refused() -> None:
    cfg = low_config(gemms("e4m3/tensor"))
    cfg.layers = [LayerRule("odd", "bfloat16", gemms=gemms("e2m1/mx"))]
    with pytest.raises(PrecisionError, match="`odd`: 40 outputs are no multiple of 32") as caught:
        planned(cfg)
    assert caught.value.problems[0].where == "precision.layers[0].gemms"
    cfg.layers = [LayerRule("[ow]*d*", "bfloat16", gemms=gemms("e2m1/mx"))]  # odd and wide
    assert {n for n, row in planned(cfg).items() if row.compute == "e2m1/mx"} == {"wide"}


def test_plans_are_the_same_on_the_meta_device() -> None:
    cfg = low_config(gemms("e4m3/mx"), keep_last=0.2)
    with torch.device("meta"):
        model: nn.Module = Net()
    assert planned(cfg, model) == planned(cfg)


def audited(cfg: PrecisionConfig, spoil: str | None = None) -> Any:
    torch.manual_seed(0)
    model = Net()
    mechanism = resolve(cfg, CPU)
    rows = assign(model, cfg, mechanism)
    policy = install(model, cfg, mechanism)
    if spoil:
        module = model.get_submodule(spoil)
        module.forward = type(module).forward.__get__(module)
    with Auditor(model, rows, cfg, mechanism) as auditor:
        with policy.forward():
            loss = model(torch.randn(2, 3, 4, 4)).float().square().sum()
        with policy.backward():
            loss.backward()
    return auditor.result()


@pytest.mark.parametrize(
    "products",
    [gemms("e4m3/tensor", "e5m2/tensor"), gemms("e4m3/mx"), gemms("e2m1/nv", "e2m1/nv/stochastic", "/hadamard")],
)
def test_the_audit_sees_the_formats_of_numbers_not_of_tensors(products: dict[str, Any]) -> None:
    audit = audited(low_config(products))
    assert audit.verdict == "match", [r for r in audit.rows if not r.matches]
    rows = {r.name: r for r in audit.rows}
    forward, backward = products["forward"], products["grad_input"]
    assert rows["body"].forward == (parse(forward["weight"], "").label,)
    assert set(rows["body"].backward) == {parse(forward["weight"], "").label, parse(backward["gradient"], "").label}
    assert rows["stem"].forward == ("bfloat16",)
    assert rows["wide"].note == "emulated: rounded operands"


def test_the_audit_finds_a_layer_that_multiplies_unrounded() -> None:
    audit = audited(low_config(gemms("e4m3/mx")), spoil="wide")
    assert audit.verdict == "differs"
    (wrong,) = [r for r in audit.rows if not r.matches]
    assert wrong.name == "wide"
    assert "forward multiplied bfloat16, planned e4m3/mx" in wrong.note


def delayed() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32))
    cfg = low_config(gemms("e4m3/delayed"), history=2)
    return model, install(model, cfg, resolve(cfg, CPU))


def update(model: nn.Module, policy: Any, x: Tensor) -> Tensor:
    with policy.forward():
        out: Tensor = model(x)
    with policy.backward():
        out.float().sum().backward()
    policy.gather()
    return out.detach()


def test_a_delayed_scale_is_of_the_last_updates_and_forgets_older_ones() -> None:
    model, policy = delayed()
    ones = torch.ones(16, 32)
    first = update(model, policy, ones)
    assert policy.state_dict()["amax"]["past"][0, 0].tolist() == [1.0, 0.0]
    assert torch.equal(update(model, policy, 100 * ones), first)  # saturates at what the scale was made for
    assert policy.state_dict()["amax"]["past"][0, 0].tolist() == [100.0, 1.0]
    update(model, policy, ones)
    update(model, policy, ones)
    assert policy.state_dict()["amax"]["past"][0, 0].tolist() == [1.0, 1.0]


def test_delayed_scales_take_no_notice_of_evaluation_audits_and_what_is_not_finite() -> None:
    model, policy = delayed()
    update(model, policy, torch.ones(16, 32))
    before = copy.deepcopy(policy.state_dict())
    with policy.evaluate():
        model(torch.full((16, 32), 7.0))
    cfg = low_config(gemms("e4m3/delayed"), history=2)
    with Auditor(model, (), cfg, resolve(cfg, CPU)), policy.forward():
        model(torch.full((16, 32), 7.0))
    assert torch.equal(policy.state_dict()["amax"]["now"], before["amax"]["now"])
    with policy.forward():
        model(torch.full((16, 32), torch.inf))
    assert torch.equal(policy.state_dict()["amax"]["now"][0, 0], torch.tensor(0.0))


def test_delayed_scales_come_back_with_the_state() -> None:
    model, policy = delayed()
    update(model, policy, torch.ones(16, 32))
    saved = copy.deepcopy((model.state_dict(), policy.state_dict()))
    wanted = update(model, policy, torch.full((16, 32), 3.0))
    other, others = delayed()
    other.load_state_dict(saved[0])
    others.load_state_dict(saved[1])
    assert torch.equal(update(other, others, torch.full((16, 32), 3.0)), wanted)
    assert not others.load_scales({"amax": {**saved[1]["amax"], "layers": ["another"]}})
    assert not others.load_scales({})


@pytest.mark.parametrize(
    ("facts", "way", "told"),
    [
        (DeviceFacts("cuda", "an H100", "2.14", (9, 0)), "e4m3/tensor", "with torchao, which is not installed"),
        (DeviceFacts("cuda", "an A100", "2.14", (8, 0)), "e4m3/tensor", "needs 8.9 or newer"),
        (DeviceFacts("cuda", "an H100", "2.14", (9, 0)), "e2m1/nv", "nvfp4 needs 10.0 or newer"),
        (DeviceFacts("cuda", "a B200", "2.14", (10, 0)), "e2m1/mx", "no training layer of mxfp4"),
        (CPU, "e2m1/mx", "has no products of mxfp4"),
        (CPU, "e4m2/tensor", "no hardware multiplies e4m2"),
    ],
)
def test_low_formats_are_emulated_and_the_reason_names_the_hardware(facts: DeviceFacts, way: str, told: str) -> None:
    cfg = low_config(gemms(way))
    mechanism = resolve(cfg, facts)
    assert (mechanism.low_how, mechanism.compute) == ("emulated", "bfloat16")
    assert told in mechanism.low_reason
    cfg.backend = "native"
    with pytest.raises(PrecisionError, match="emulates"):
        resolve(cfg, facts)


def test_bad_settings_are_refused_together() -> None:
    cfg = policy_config(
        "fp32", options={"gemms": gemms("e4m3/tensr"), "keep_last": 2, "low_layers": ["lin"], "history": 0}
    )
    with pytest.raises(PrecisionError) as caught:
        resolve(cfg, CPU)
    text = str(caught.value)
    for part in ("precision.compute", "did you mean `tensor`", "keep_last", "did you mean `linear`", "history"):
        assert part in text


@pytest.mark.parametrize("shape", [(32, 32), (4, 8, 32)])
def test_an_activation_after_a_low_bit_linear_may_work_in_place(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, linear = torch.randn(shape), nn.Linear(32, 32)
    results = []
    for inplace in (True, False):
        model = nn.Sequential(low(copy.deepcopy(linear), gemms("e4m3/tensor")), nn.Hardswish(inplace=inplace))
        results.append(run(model, x, torch.ones(shape, dtype=torch.bfloat16)))
    (out, grad, grads), (wanted, wanted_grad, wanted_grads) = results
    assert torch.equal(out, wanted)
    assert grad is not None
    assert wanted_grad is not None
    assert torch.equal(grad, wanted_grad)
    assert all(torch.equal(grads[name], wanted_grads[name]) for name in wanted_grads)
