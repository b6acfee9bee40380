"""torchao behind low-bit policies: which products it has, on which GPUs, and that it multiplies as emulation does."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.config import catalog
from mpt.config.compose import compose
from mpt.errors import PrecisionError
from mpt.formats.operand import Gemms, gemms_of
from mpt.precision import Auditor, Policy, assign, install, resolve, support
from mpt.precision.assignment import settled
from mpt.precision.low.layers import LowLayers
from mpt.precision.low.native import native_linear
from mpt.precision.low.recipes import MXFP8, NVFP4, ROWWISE, TENSORWISE, Recipe, recipe_of
from mpt.types import DeviceFacts
from tests.unit._precision_kit import CPU
from tests.unit.test_precision_low import BF16, gemms, low_config

TORCHAO = "0.18.0"
FP8 = {
    "forward": {"activation": "e4m3/tensor", "weight": "e4m3/tensor"},
    "grad_input": {"gradient": "e5m2/tensor", "weight": "e4m3/tensor"},
    "grad_weight": {"gradient": "e5m2/tensor", "activation": "e4m3/tensor"},
}


def gpu(major: int, minor: int, torchao: str | None = TORCHAO) -> DeviceFacts:
    return DeviceFacts("cuda", f"GPU {major}.{minor}", "2.14.1", (major, minor), torchao=torchao)


def products(given: dict[str, Any]) -> Gemms:
    found = gemms_of(given)
    assert found is not None
    return found


def of_policy(choice: str, *words: str) -> Gemms:
    return products(compose([f"precision={choice}", *words]).precision.options["gemms"])


def test_torchao_multiplies_five_of_the_policies_and_each_other_one_says_why_not() -> None:
    low = {c for c in catalog.choices("precision") if compose([f"precision={c}"]).precision.options.get("gemms")}
    found = {c: recipe_of(of_policy(c)) for c in low}
    native = {"fp8": TENSORWISE, "fp8_rowwise": ROWWISE, "mxfp8": MXFP8, "nvfp4": NVFP4}
    assert {c: r for c, r in found.items() if isinstance(r, Recipe)} == native
    assert all(r for r in found.values())
    assert "no training layer" in str(found["mxfp4"])
    assert recipe_of(of_policy("mxfp8", "precision.scale_rule=floor")) is MXFP8
    assert "floor" in str(recipe_of(of_policy("mxfp8", "precision.scale_rule=even")))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (gemms("e4m3/tensor", "e5m2/tensor") | {"forward": {"activation": "e4m3/tensor"}}, "both operands"),
        (gemms("e5m2/tensor"), "e5m2 with e5m2"),
        (gemms("e4m3/tensor", "e4m3/tensor/stochastic"), "no such products"),
        ({"grad_input": {"gradient": "e5m2/tensor", "weight": "e4m3/tensor"}}, "stays high"),
        (gemms("e4m3/row", "e4m3/row/pow2"), "powers of two"),
        (gemms("e2m1/nv"), "only by the recipe"),
        (gemms("e4m3/mx", "e5m2/mx"), "e4m3 throughout"),
    ],
)
def test_products_that_torchao_does_not_have_stay_emulated(given: dict[str, Any], told: str) -> None:
    assert told in str(recipe_of(products(given)))


@pytest.mark.parametrize(
    ("facts", "choice", "how", "told"),
    [
        (gpu(9, 0), "fp8", "native", "float8 by tensor"),
        (gpu(8, 9), "fp8", "native", "float8 by tensor"),
        (gpu(8, 9), "fp8_rowwise", "emulated", "float8 by row needs 9.0"),
        (gpu(9, 0), "fp8_rowwise", "native", "float8 by row"),
        (gpu(9, 0), "mxfp8", "emulated", "needs 10.0 or newer"),
        (gpu(10, 0), "mxfp8", "native", "linears of mxfp8"),
        (gpu(10, 3), "nvfp4", "native", "linears of nvfp4"),
        (gpu(12, 0), "nvfp4", "emulated", "built for 10.x"),
        (gpu(10, 0), "mxfp4", "emulated", "no training layer"),
        (gpu(10, 0, None), "nvfp4", "emulated", "pip install 'torchao"),
        (gpu(9, 0, "0.17.0"), "fp8", "emulated", "torchao 0.17.0 is not the release"),
        (CPU, "fp8", "emulated", "has no products of float8_e4m3fn"),
    ],
)
def test_device_and_torchao_decide_and_native_is_refused_elsewhere(
    facts: DeviceFacts, choice: str, how: str, told: str
) -> None:
    cfg = compose([f"precision={choice}"]).precision
    mechanism = resolve(cfg, facts)
    assert (mechanism.low_how, told in mechanism.low_reason) == (how, True), mechanism.low_reason
    cfg.backend = "native"
    if how == "native":
        assert resolve(cfg, facts).backend == "native"
    else:
        with pytest.raises(PrecisionError) as caught:
            resolve(cfg, facts)
        assert told in str(caught.value)
        assert "hint" in str(caught.value)
    cfg.backend = "emulated"
    assert (resolve(cfg, facts).low_how, resolve(cfg, facts).native) == ("emulated", ())


def test_the_table_of_formats_answers_without_a_policy() -> None:
    table = {s.format: s.how for s in support(gpu(10, 0))}
    assert [name for name, how in table.items() if how == "emulated"] == ["mxfp6", "mxfp4", "int8"]


def test_layers_are_native_one_by_one_and_a_rule_s_own_products_are_asked_again() -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(128, 256), nn.Linear(256, 144))
    cfg = compose(["precision=nvfp4", "precision.keep_last=0"]).precision
    mechanism = resolve(cfg, gpu(10, 0))
    rows = {row.name: row for row in assign(model, cfg, mechanism)}
    assert [rows[name].how for name in ("0", "2", "3")] == ["emulated", "native", "emulated"]
    assert "torchao has no convolutions" in rows["0"].reason
    assert "144 outputs are no multiple of 128" in rows["3"].reason
    assert settled(mechanism, tuple(rows.values())).backend == "emulated"
    cfg.backend = "native"
    with pytest.raises(PrecisionError, match=r"2 of 3 low-bit layers would be emulated; `0`: torchao has no conv"):
        assign(model, cfg, resolve(cfg, gpu(10, 0)))


def test_a_convolution_is_not_told_to_install_what_has_none() -> None:
    cfg = compose(["precision=fp8", "precision.keep_last=0"]).precision
    rows = assign(nn.Sequential(nn.Conv2d(16, 32, 3), nn.Linear(128, 256)), cfg, resolve(cfg, gpu(9, 0, None)))
    assert ["emulated: torchao has no convolutions" in row.reason for row in rows] == [True, False]
    assert "pip install" in resolve(cfg, gpu(9, 0, None)).low_reason
    on_cpu = assign(nn.Sequential(nn.Conv2d(16, 32, 3)), cfg, resolve(cfg, CPU))
    assert "torchao" not in on_cpu[0].reason


@pytest.fixture
def _torchao() -> None:
    pytest.importorskip("torchao")


def pair(given: dict[str, Any], recipe: Recipe, bias: bool) -> tuple[nn.Module, nn.Module]:
    """One net of torchao's emulated products, and the same one of ours."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(64, 128, bias=bias), nn.GELU(), nn.Linear(128, 32, bias=bias))
    theirs, g = copy.deepcopy(ours), products(given)
    native = {n: native_linear(theirs[int(n)], g, recipe, torch.bfloat16, emulate=True) for n in ("0", "2")}  # type: ignore[arg-type]
    LowLayers(theirs, {"0": g, "2": g}, torch.bfloat16, 4, native)
    LowLayers(ours, {"0": g, "2": g}, torch.bfloat16, 4)
    return theirs, ours


def step(net: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(x)
    loss = F.cross_entropy(logits.float(), target)
    loss.backward()
    return loss.detach(), logits.detach(), [p.grad for p in net.parameters() if p.grad is not None]


@pytest.mark.usefixtures("_torchao")
@pytest.mark.parametrize("tokens", [48, 41])
@pytest.mark.parametrize(
    ("given", "recipe"),
    [(FP8, TENSORWISE), (gemms("e4m3/row/pow2"), ROWWISE), (gemms("e4m3/mx"), MXFP8), (gemms("e4m3/mx/floor"), MXFP8)],
)
def test_a_step_equals_torchao_s_emulation_bit_by_bit_without_bias(
    given: dict[str, Any], recipe: Recipe, tokens: int
) -> None:
    x, target = torch.randn(tokens, 64), torch.randint(0, 32, (tokens,))
    theirs, ours = (step(net, x, target) for net in pair(given, recipe, bias=False))
    assert torch.equal(theirs[0], ours[0])
    assert all(torch.equal(a, b) for a, b in zip(theirs[2], ours[2], strict=True))


@pytest.mark.usefixtures("_torchao")
@pytest.mark.parametrize(("given", "recipe"), [(FP8, TENSORWISE), (gemms("e4m3/mx"), MXFP8)])
def test_with_bias_a_layer_differs_by_one_more_rounding_of_its_result(given: dict[str, Any], recipe: Recipe) -> None:
    torch.manual_seed(1)
    x, target = torch.randn(64, 64), torch.randint(0, 32, (64,))
    theirs, ours = pair(given, recipe, bias=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, wanted = theirs[0](x).float(), ours[0](x).float()  # type: ignore[index]
    # rounded once more are the sum, which is at most |result| + |bias|, and the bias; both results are rounded
    bound = BF16 * (3 * wanted.abs() + 2 * ours[0].bias.abs())  # type: ignore[index]
    assert ((got - wanted).abs() <= bound).all()
    assert not torch.equal(got, wanted)
    losses = [step(net, x, target) for net in (theirs, ours)]
    # a cross entropy moves by at most twice the largest error of a logit, and both layers add to that
    assert (losses[0][0] - losses[1][0]).abs() <= 4 * BF16 * losses[1][1].abs().max()


@pytest.mark.usefixtures("_torchao")
def test_native_float8_runs_here_too_by_torch_s_kernel_for_cpus_and_is_audited() -> None:
    cfg = low_config(FP8)
    mechanism = replace(resolve(cfg, gpu(9, 0)), device="cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 32, bias=False))
    plain = copy.deepcopy(model)
    rows = assign(model, cfg, mechanism)
    policy = install(model, cfg, mechanism)
    assert {row.how for row in rows if row.kind == "gemm"} == {"native"}
    x, target = torch.randn(48, 64), torch.randint(0, 32, (48,))
    with Auditor(model, rows, cfg, mechanism) as auditor:
        loss, logits = _pass(model, policy, x, target)
    audit = auditor.result()
    assert audit.verdict == "match"
    assert {row.backward for row in audit.rows if row.name in "02"} == {("e4m3/tensor", "e5m2/tensor")}
    assert not any("emulated" in row.note for row in audit.rows)

    assert list(model.state_dict()) == list(plain.state_dict())
    assert [p.dtype for p in model.parameters()] == [torch.float32] * 2
    with policy.evaluate("fp32"):
        assert torch.equal(model(x), plain(x))

    other = copy.deepcopy(plain)
    emulated = install(other, cfg, replace(mechanism, native=()))
    reference, others = _pass(other, emulated, x, target)
    # sums of another order can turn one rounding to bfloat16 in each of the two layers
    assert (logits - others).abs().max() <= 2 * BF16 * others.abs().max()
    assert (loss - reference).abs() <= 4 * BF16 * others.abs().max()


def _pass(model: nn.Module, policy: Policy, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    with policy.forward():
        logits = model(x)
    loss = F.cross_entropy(logits.float(), target)
    with policy.backward():
        loss.backward()
    return loss.detach(), logits.detach().float()


@pytest.mark.usefixtures("_torchao")
def test_the_audit_finds_a_native_layer_of_another_format() -> None:
    cfg, other = low_config(FP8), low_config(gemms("e4m3/row/pow2"))
    mechanism = replace(resolve(cfg, gpu(9, 0)), device="cpu")
    model = nn.Sequential(nn.Linear(64, 128))
    rows, policy = assign(model, cfg, mechanism), install(model, other, mechanism)
    with Auditor(model, rows, cfg, mechanism) as auditor, policy.forward():
        model(torch.randn(16, 64)).sum().backward()
    audit = auditor.result()
    assert audit.verdict == "differs"
    assert "forward multiplied e4m3/row, planned e4m3/tensor" in audit.rows[-1].note
