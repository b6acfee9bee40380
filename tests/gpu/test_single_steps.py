"""Single steps on the GPU: equal to the CPU's, right at the edges of the formats, without trace when skipped."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mpt.build import build
from mpt.config.compose import compose
from mpt.optim import build_optimizer
from mpt.train.engine import make_engine
from mpt.types import Batch
from tests.gpu._gpu_kit import CNN, DEVICE, GPT, POLICIES, Kit

EPS32 = 2.0**-24
MLP = ("model=mlp", "model.width=64", "precision=fp32", "schedule=constant")


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_the_fused_kernel_makes_of_equal_gradients_what_the_cpus_makes(name: str) -> None:
    """Elementwise arithmetic in float32: each of a dozen operations may round otherwise."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1000, generator=generator)
    grads = [torch.randn(1000, generator=generator) for _ in range(5)]
    cfg = compose([f"optimizer={name}", "optimizer.lr=0.01", "optimizer.weight_decay=0.1"]).optimizer

    def after(device: str) -> Tensor:
        param: Tensor = torch.nn.Parameter(start.to(device))
        optimizer = build_optimizer(cfg, [param], "float32")
        lr, divisor, found = (torch.full((), x, device=device) for x in (0.01, 4.0, 0.0))
        with torch.no_grad():
            for grad in grads:
                optimizer.step([grad.to(device, copy=True)], lr, divisor, found)
        return param.detach().cpu()

    ours, want = after(DEVICE), after("cpu")
    assert bool(((ours - want).abs() <= 5 * 12 * EPS32 * (want.abs() + 1)).all())


def test_a_float32_step_equals_the_cpus_within_what_sums_in_another_order_may_differ_by() -> None:
    words = (*MLP, "optimizer=sgd", "optimizer.momentum=0", "optimizer.weight_decay=0", "optimizer.lr=0.1")
    kit = Kit(*words)
    other = build(compose([*words, "device=cpu"]))
    stepper, batches = make_engine(other).stepper, other.data.train(start=0)
    batch = kit.batch()
    host = next(batches)
    assert torch.equal(batch.inputs.cpu(), host.inputs)
    assert torch.equal(batch.targets.cpu(), host.targets)
    before = [w.detach().clone() for w in other.policy.weights]
    ours, theirs = kit.step(batch), stepper([host])
    # forward and backward chain three layers, each a sum of at most `longest` float32 products
    longest = 64 + 64
    bound = 3 * 2 * longest * EPS32
    assert math.isclose(ours.norm.item(), theirs.norm.item(), rel_tol=bound)
    assert math.isclose(ours.loss_sum.item(), theirs.loss_sum.item(), rel_tol=bound)
    for mine, want, was in zip(kit.run.policy.weights, other.policy.weights, before, strict=True):
        moved = (want - was).norm()
        assert (mine.cpu() - want).norm() <= bound * moved + 2 * EPS32 * want.norm()


def size(tensors: list[Tensor]) -> float:
    """The global norm, in float64."""
    return float(torch.stack([t.double().norm() for t in tensors]).norm())


def test_a_huge_but_finite_gradient_is_not_counted_as_infinite() -> None:
    """Its squares overflow float32; the norm does not."""
    kit = Kit(*MLP, "optimizer=sgd", "optimizer.momentum=0", "trainer.clip_norm=1", "task.loss_weight=1e30")
    plain = Kit(*MLP, "optimizer=sgd", "optimizer.momentum=0")
    batch = kit.batch()
    before = [w.detach().clone() for w in kit.run.policy.weights]
    huge, usual = kit.step(batch), plain.step(batch)
    assert huge.found.item() == 0
    assert math.isclose(huge.norm.item(), 1e30 * usual.norm.item(), rel_tol=1024 * EPS32)
    moved = size([w.detach() - b for w, b in zip(kit.run.policy.weights, before, strict=True)])
    rate, decay = kit.cfg.optimizer.lr, kit.cfg.optimizer.weight_decay * size(before)
    assert 0 < moved <= rate * (1 + 1024 * EPS32 + decay)  # clipped to a norm of 1


def poisoned(batch: Batch) -> Batch:
    """The same batch with one number that breaks the forward pass."""
    inputs = batch.inputs.clone()
    inputs.view(-1)[3] = float("nan")
    return Batch(inputs, batch.targets)


@pytest.mark.parametrize("precision", POLICIES)
@pytest.mark.parametrize("when", [0, 3])
def test_a_skipped_step_leaves_no_trace(precision: str, when: int) -> None:
    words = ("trainer.ema_decay=0.9", "trainer.clip_norm=1", "schedule=exponential", "schedule.gamma=0.5")
    kit = Kit(*CNN, f"precision={precision}", *words)
    for _ in range(when):
        kit.step()
    before = kit.everything()
    scale = kit.run.scaler.scale.item()
    attempt = kit.step(poisoned(kit.batch()))
    assert attempt.found.item() == 1
    *after, scale_after = kit.everything()
    for was, now in zip(before[:-1], after, strict=True):
        assert torch.equal(was, now)
    assert scale_after.item() == (scale / 2 if kit.run.scaler.changes else scale)
    assert kit.step().found.item() == 0
    assert all(bool(t.isfinite().all()) for t in kit.everything())


def test_an_overflow_halves_the_scale_and_growth_doubles_it_as_torchs_scaler_does() -> None:
    kit = Kit(*CNN, "precision=fp16", "scaling.init_scale=16777216", "scaling.growth_interval=3")
    theirs = torch.amp.GradScaler(DEVICE, init_scale=2.0**24, growth_interval=3)
    theirs.scale(torch.ones((), device=DEVICE))
    for _ in range(30):
        attempt = kit.step()
        assert attempt.scale.item() == theirs.get_scale()
        assert theirs._scale is not None
        assert theirs._growth_tracker is not None
        torch._amp_update_scale_(theirs._scale, theirs._growth_tracker, attempt.found, 2.0, 0.5, 3)
        theirs._scale.clamp_(max=kit.cfg.scaling.max_scale)
    assert kit.run.scaler.scale.item() < 2.0**24


def test_gradients_of_a_half_gpt_are_those_of_float32_within_its_format() -> None:
    full, half = Kit(*GPT, "precision=fp32"), Kit(*GPT, "precision=fp16")
    batch = full.batch()
    a, b = full.step(batch), half.step(batch)
    assert math.isclose(a.loss_sum.item(), b.loss_sum.item(), rel_tol=8 * 2.0**-11)
    assert math.isclose(a.norm.item(), b.norm.item(), rel_tol=16 * 2.0**-11)
