"""The step against hand-written loops, and what a skipped one leaves behind: nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mpt.types import Batch
from tests.unit._step_kit import Kit, Net, Reads, batch, poisoned

EPS = 2.0**-23


def textbook(optimizer: str, clip: float | None, steps: int, **options: Any) -> list[Tensor]:
    """Weights after a loop as in the tutorials: mean loss, clip_grad_norm_, torch's fused optimizer, a float32 rate."""
    torch.manual_seed(0)
    model = Net()
    opt = getattr(torch.optim, optimizer)(model.parameters(), lr=torch.tensor(1e-2), fused=True, **options)
    for i in range(steps):
        x, y = batch(i)
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize(
    ("name", "theirs", "options"),
    [
        ("adamw", "AdamW", {"weight_decay": 0.01}),
        ("adam", "Adam", {"weight_decay": 0.01}),
        ("sgd", "SGD", {"momentum": 0.9, "weight_decay": 0.01}),
    ],
)
def test_weights_equal_those_of_the_textbook_loop(
    name: str, theirs: str, options: dict[str, Any], clip: float | None
) -> None:
    words = [f"optimizer={name}", "optimizer.lr=0.01", "optimizer.weight_decay=0.01", "schedule=constant"]
    kit = Kit(*words, f"trainer.clip_norm={'null' if clip is None else clip}")
    for i in range(20):
        kit.step([batch(i)])
    for mine, want in zip(kit.policy.weights, textbook(theirs, clip, 20, **options), strict=True):
        if clip is None:
            assert torch.equal(mine, want)
        else:  # one rounding of the divisor against one of the coefficient, in each of 20 steps of size lr
            assert (mine - want).abs().max() <= 20 * 8 * EPS * want.abs().max()


SKIPPERS = [
    ("precision=fp32", "optimizer=adamw"),
    ("precision=fp32", "optimizer=sgd"),
    ("precision=fp32", "optimizer=rmsprop"),
    ("precision=bf16", "optimizer=adamw"),
    ("precision=fp16", "optimizer=adamw"),
    ("precision=fp16_master", "optimizer=adamw"),
    ("precision=fp16_master", "optimizer=sgd"),
    ("precision=bf16_true", "optimizer=adamw"),
]


@pytest.mark.parametrize("words", SKIPPERS, ids="-".join)
@pytest.mark.parametrize("when", [0, 3])
def test_a_skipped_step_leaves_weights_moments_average_rate_and_buffers_as_before(
    words: tuple[str, ...], when: int
) -> None:
    kit = Kit(*words, "trainer.ema_decay=0.9", "schedule=exponential", "schedule.gamma=0.5", "trainer.clip_norm=1")
    for i in range(when):
        kit.step([batch(i)])
    before, rate = kit.everything(), kit.rates.now.clone()
    attempt = kit.step([batch(90), poisoned(91)])
    assert attempt.found.item() == 1
    assert torch.equal(kit.rates.now, rate)
    after = kit.everything()
    for a, b in zip(before, after[: len(before)], strict=True):
        assert torch.equal(a, b)
    attempt = kit.step([batch(92)])
    assert attempt.found.item() == 0
    assert all(t.isfinite().all() for t in kit.everything())


def test_an_applied_step_moves_everything_that_a_skipped_one_must_leave() -> None:
    kit = Kit("trainer.ema_decay=0.9", "schedule=exponential", "schedule.gamma=0.5")
    before, rate = kit.everything(), kit.rates.now.clone()
    kit.step([batch(0)])
    assert not any(torch.equal(a, b) for a, b in zip(before, kit.everything(), strict=True))
    assert kit.rates.now.item() == rate.item() / 2


def test_the_rate_follows_applied_updates_only() -> None:
    kit = Kit("schedule=exponential", "schedule.gamma=0.5", "optimizer.lr=1")
    rates = []
    for broken in (False, True, True, False, True, False):
        rates.append(kit.rates.now.item())
        kit.step([poisoned(1) if broken else batch(1)])
    assert rates == [1, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_a_static_scale_of_1024_gives_the_weights_and_norms_of_no_scaling_bit_for_bit() -> None:
    plain = Kit("optimizer=sgd", "trainer.clip_norm=0.1")
    scaled = Kit(
        "optimizer=sgd", "trainer.clip_norm=0.1", "precision=fp32", "scaling=static", "scaling.init_scale=1024"
    )
    for i in range(5):
        a, b = plain.step([batch(i)]), scaled.step([batch(i)])
        assert torch.equal(a.norm, b.norm)
        assert torch.equal(a.loss_sum, b.loss_sum)
    assert all(torch.equal(a, b) for a, b in zip(plain.policy.weights, scaled.policy.weights, strict=True))


def test_a_window_of_four_micro_batches_has_the_gradient_of_their_union() -> None:
    class NoNorm(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.first(x.flatten(1)).relu())

    torch.manual_seed(0)
    kit = Kit(model=NoNorm())
    parts = [batch(i, size) for i, size in enumerate((16, 5, 8, 3))]
    attempt, excess = kit.step.backward(parts)
    assert (attempt.count, attempt.samples, excess) == (32, 32, 32 / 64)
    got = [w.grad / excess for w in kit.policy.weights if w.grad is not None]
    whole = F.cross_entropy(kit.model(torch.cat([p.inputs for p in parts])), torch.cat([p.targets for p in parts]))
    want = torch.autograd.grad(whole, [w for w in kit.policy.weights if w.grad is not None])
    assert len(got) == 3
    for a, b in zip(got, want, strict=True):
        assert (a - b).abs().max() <= 32 * EPS * b.abs().max()  # sums of 32 terms in another order


def test_micro_batches_of_unequal_size_give_the_update_and_norm_of_their_union() -> None:
    words = ("optimizer=sgd", "optimizer.momentum=0", "trainer.clip_norm=0.01", "precision=fp16", "scaling=static")
    parts, whole = Kit(*words), Kit(*words)
    for kit in (parts, whole):
        kit.model.norm = torch.nn.Identity()
    a = parts.step([batch(0, 16), batch(1, 5)])
    joined = Batch(*(torch.cat(both) for both in zip(batch(0, 16), batch(1, 5), strict=True)))
    b = whole.step([joined])
    assert abs(a.norm - b.norm) <= 2.0**-8 * b.norm  # float16 products, rounded at other places
    for one, other in zip(parts.policy.weights, whole.policy.weights, strict=True):
        assert (one - other).abs().max() <= 2.0**-8 * 0.01 * kit.cfg.optimizer.lr


def test_the_weight_of_the_loss_scales_gradients() -> None:
    one, tenth = Kit(), Kit("task.loss_weight=0.125")
    one.step.backward([batch(0)])
    tenth.step.backward([batch(0)])
    for a, b in zip(one.policy.weights, tenth.policy.weights, strict=True):
        assert torch.equal(a.grad / 8, b.grad)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "fp16_master", "bf16_true", "fp16_true"])
def test_a_step_reads_no_device_scalar(precision: str, optimizer: str) -> None:
    kit = Kit(f"precision={precision}", f"optimizer={optimizer}", "trainer.ema_decay=0.9", "trainer.clip_norm=1")
    kit.step([batch(0)])
    with Reads() as reads:
        kit.step([batch(1)])
        kit.step([batch(2), batch(3)])
    assert reads.count == 0


def test_the_counter_sees_a_read_and_the_plan_is_told_of_optimizers_that_make_one() -> None:
    with Reads() as reads:
        torch.ones(()).item()
    assert reads.count == 1
    assert Kit("optimizer=rmsprop").optimizer.reads_device
    assert not Kit("optimizer=adamw").optimizer.reads_device


def test_working_weights_are_the_masters_rounded() -> None:
    kit = Kit("precision=fp16_master", "scaling.init_scale=1024")
    for i in range(3):
        kit.step([batch(i)])
    moved = 0
    for master, weight in zip(kit.policy.masters, kit.policy.weights, strict=True):
        assert master.dtype == torch.float32
        assert torch.equal(master.to(weight.dtype), weight)
        moved += weight.dtype == torch.float16
    assert moved == 3


def test_a_gradient_too_large_for_its_sum_of_squares_is_not_an_overflow() -> None:
    kit = Kit("optimizer=sgd", "optimizer.lr=1e-30", "task.loss_weight=1e22")
    before = kit.everything()
    attempt = kit.step([batch(0)])
    assert attempt.found.item() == 0
    assert attempt.norm.item() > 1e19
    assert torch.isfinite(attempt.norm)
    assert not torch.equal(before[-1], kit.everything()[-1])


def test_lbfgs_lowers_the_loss_and_undoes_an_update_that_ends_non_finite() -> None:
    kit = Kit("optimizer=lbfgs", "optimizer.lr=1", "schedule=constant")
    losses = [kit.step([batch(0)]).loss_sum.item() for _ in range(8)]
    assert losses[-1] < 0.5 * losses[0]
    twin = Kit("optimizer=lbfgs", "optimizer.lr=1", "schedule=constant")
    for _ in range(8):
        twin.step([batch(0)])
    assert kit.step([poisoned(1)]).found.item() == 1
    assert all(torch.equal(a, b) for a, b in zip(twin.everything(), kit.everything(), strict=True))
    kit.step([batch(2)])
    twin.step([batch(2)])
    assert all(torch.equal(a, b) for a, b in zip(twin.everything(), kit.everything(), strict=True))


def test_a_buffer_that_a_module_replaces_is_restored_too() -> None:
    class Replacing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + x.sum()
            return super().forward(x)

    kit = Kit(model=Replacing())
    kit.step([batch(0)])
    before = kit.model.seen.clone()
    kit.step([poisoned(1)])
    assert torch.equal(kit.model.seen, before)
    kit.step([batch(2)])
    assert not torch.equal(kit.model.seen, before)
    assert kit.model.seen.isfinite()
