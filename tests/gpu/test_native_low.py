"""torchao's float8, MXFP8 and NVFP4 linears on the GPU: audited, near their emulation, learning, compiled."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from mpt.config.compose import compose
from mpt.formats.operand import Gemms, gemms_of
from mpt.plan.facts import probe
from mpt.precision import Auditor, assign, resolve
from mpt.precision.low.layers import LowLayers
from mpt.precision.low.native import native_linear
from mpt.precision.low.recipes import Recipe, recipe_of
from tests.gpu._gpu_kit import DEVICE, Kit

SUMS = 2.0**-13
"""Of the magnitudes that are summed: Hopper's float8 tensor cores keep about 14 bits of a sum."""
POLICIES = ("fp8", "fp8_rowwise", "mxfp8", "nvfp4")
GPT = (
    *("model=gpt", "model.layers=2", "model.width=128", "model.heads=4", "model.context=128"),
    *("data=shakespeare", "data.batch_size=8", "data.limit=512"),
)
pytestmark = pytest.mark.cuda_only
every = pytest.mark.parametrize("choice", POLICIES)


def native(choice: str) -> tuple[Gemms, Recipe]:
    """Products and recipe; skips where the device or torchao lacks them."""
    cfg = compose([f"precision={choice}"]).precision
    mechanism = resolve(cfg, probe(DEVICE))
    if mechanism.low_how != "native":
        pytest.skip(mechanism.low_reason)
    gemms = gemms_of(cfg.options["gemms"])
    assert gemms is not None
    recipe = recipe_of(gemms)
    assert isinstance(recipe, Recipe)
    return gemms, recipe


@every
@pytest.mark.parametrize("tokens", [256, 200])
def test_forward_is_the_emulated_one_up_to_the_sums_of_tensor_cores(choice: str, tokens: int) -> None:
    gemms, recipe = native(choice)
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(256, 384, bias=False)).to(DEVICE)
    theirs = copy.deepcopy(ours)
    linear = theirs[0]
    assert isinstance(linear, nn.Linear)
    kernels = {"0": native_linear(linear, gemms, recipe, torch.bfloat16)}
    LowLayers(theirs, {"0": gemms}, torch.bfloat16, 4, kernels)
    LowLayers(ours, {"0": gemms}, torch.bfloat16, 4)
    x = torch.randn(tokens, 256, device=DEVICE)
    got, wanted = (_out(net, x) for net in (theirs, ours))
    size = x.abs() @ linear.weight.abs().t()
    assert ((got - wanted).abs() <= 2.0**-7 * wanted.abs() + (SUMS + 2.0**-8) * size).all()
    assert (got - wanted).norm() <= 0.02 * wanted.norm()


def _out(net: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
        out: Tensor = net(x)
    return out.float()


@every
def test_the_audit_sees_the_formats_in_torchao_s_tensors(choice: str) -> None:
    native(choice)
    kit = Kit(f"precision={choice}", *GPT)
    run = kit.run
    mechanism = resolve(kit.cfg.precision, run.plan.device)
    rows = assign(run.model, kit.cfg.precision, mechanism)
    assert any(row.how == "native" and "/" in row.compute for row in rows)
    with kit.switched(), Auditor(run.model, rows, kit.cfg.precision, mechanism) as auditor:
        kit.step()
    audit = auditor.result()
    assert audit.verdict == "match", [row for row in audit.rows if not row.matches]


@every
@pytest.mark.parametrize("compiled", ["false", "true"])
def test_it_learns_eagerly_and_compiled(choice: str, compiled: str) -> None:
    native(choice)
    kit = Kit(f"precision={choice}", *GPT, f"trainer.compile={compiled}", "optimizer.lr=3e-3")
    with kit.switched():
        attempts = [kit.step() for _ in range(30)]
    losses = [(a.loss_sum / a.count).item() for a in attempts]
    assert not any(bool(a.found) for a in attempts)
    assert losses[-1] < losses[0] - 1
