"""Weights and moments in fewer bits: halves that are float32 exactly, stochastic rounding, 8-bit moments, windows."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mpt.config.compose import compose
from mpt.formats.rounding import round_to
from mpt.formats.stored import Storage, join_float32, split_float32, stochastic_bfloat16
from mpt.optim import _eight_bit, build_optimizer
from mpt.optim import _windows as windows
from mpt.precision.masters import MasterCopies
from tests.unit._step_kit import Kit, batch

ONE, NONE = torch.tensor(1.0), torch.tensor(0.0)
LR = torch.tensor(1e-2)


def every_kind(count: int = 1 << 16) -> Tensor:
    """float32 numbers of all sizes, with the codes beside and at ties between bfloat16 numbers."""
    draw = torch.Generator().manual_seed(0)
    codes = torch.randint(-(2**31), 2**31 - 1, (count,), generator=draw, dtype=torch.int64).to(torch.int32)
    ties = (codes & ~0xFFFF) | 0x8000
    x = torch.cat([codes, ties - 1, ties, ties + 1]).view(torch.float32)
    return x[x.isfinite() & (x.abs() < 3e38)]


def test_halves_join_to_the_same_float32_bit_by_bit_and_the_high_one_is_nearest() -> None:
    x = torch.cat([every_kind(), torch.tensor([0.0, -0.0, 1e-45, float("inf"), -float("inf")])])
    high, low = split_float32(x)
    assert (high.dtype, low.dtype) == (torch.bfloat16, torch.int16)
    assert torch.equal(join_float32(high, low).view(torch.int32), x.view(torch.int32))
    tie = (x.view(torch.int32) & 0xFFFF) == 0x8000
    assert torch.equal(high[~tie].view(torch.int16), x[~tie].bfloat16().view(torch.int16))
    assert (high[tie].float().abs() > x[tie].abs()).all()


@pytest.mark.parametrize("value", [1.0 + 3 * 2.0**-10, -(1.0 + 2.0**-12), 3e-39, -1.7e-5])
def test_stochastic_rounding_is_unbiased_within_4_sigma_and_between_the_neighbours(value: float) -> None:
    torch.manual_seed(0)
    x = torch.full((200_000,), value)
    got = stochastic_bfloat16(x).double()
    toward = round_to(x[:1], "bfloat16", rounding="zero").double()
    code = toward.float().view(torch.int32) + 0x10000
    away = code.view(torch.float32).double()
    assert set(got.unique().tolist()) == {toward.item(), away.item()}
    share = ((x[0].double() - toward) / (away - toward)).item()
    sigma = (share * (1 - share) / len(x)) ** 0.5
    assert abs((got == away).double().mean().item() - share) <= 4 * sigma


def test_stochastic_rounding_leaves_what_is_bfloat16_infinite_or_not_a_number() -> None:
    exact = every_kind(1000).bfloat16().float()
    assert torch.equal(stochastic_bfloat16(exact).float(), exact)
    odd = stochastic_bfloat16(torch.tensor([float("inf"), -float("inf"), float("nan")]))
    assert odd[:2].tolist() == [float("inf"), -float("inf")]
    assert odd[2].isnan()


def weights(*shapes: tuple[int, ...]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    found = [torch.randn(s, generator=draw) for s in shapes]
    return [w.to(memory_format=torch.channels_last) if w.dim() == 4 else w for w in found]


SHAPES = ((8, 4, 3, 3), (33, 17), (5,))


def slopes(params: list[Tensor], step: int) -> list[Tensor | None]:
    draw = torch.Generator().manual_seed(100 + step)
    return [torch.empty_like(p).copy_(torch.randn(p.shape, generator=draw).bfloat16()) for p in params]


def optimizer(words: str, params: list[Tensor], moment: str, storage: Storage | None) -> Any:
    return build_optimizer(compose(words.split()).optimizer, params, moment, storage)


@pytest.mark.parametrize(
    "words", ["optimizer=adamw", "optimizer=adam", "optimizer=sgd", "optimizer=sgd optimizer.momentum=0"]
)
def test_windows_of_float32_change_no_bit(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW", 128)  # whole vectors: kernels round their tails otherwise
    mine, theirs = weights(*SHAPES), weights(*SHAPES)
    ours = optimizer(words, mine, "float32", Storage([None] * 3))
    plain = optimizer(words, theirs, "float32", None)
    for i in range(4):
        found = torch.tensor(float(i == 2))
        ours.step(slopes(mine, i), LR, torch.tensor(2.0), found)
        plain.step(slopes(theirs, i), LR, torch.tensor(2.0), found)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_gradients_of_another_order_of_memory_and_missing_ones_are_taken_as_they_are() -> None:
    mine, theirs = weights(*SHAPES), weights(*SHAPES)
    ours = optimizer("optimizer=adamw", mine, "float32", Storage([None] * 3))
    plain = optimizer("optimizer=adamw", theirs, "float32", None)
    for target, params in ((ours, mine), (plain, theirs)):
        grads = slopes(params, 0)
        assert grads[0] is not None
        grads[0] = grads[0].contiguous() if target is ours else grads[0].to(memory_format=torch.channels_last)
        grads[1] = None
        target.step(grads, LR, ONE, NONE)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_skipped_step_leaves_every_stored_bit_also_where_moments_are_8_bit() -> None:
    pytest.importorskip("torchao")
    params = [w.bfloat16() for w in weights((64, 128), (5,))]
    ours = optimizer("optimizer=adamw", params, "int8", Storage([None, None], stochastic=True))
    ours.step(slopes(params, 0), LR, ONE, NONE)
    before = [t.clone() for t in (*params, *ours.state_tensors())]
    ours.step([torch.full_like(p, float("nan")) for p in params], LR, ONE, ONE)
    assert all(torch.equal(a, b) for a, b in zip(before, (*params, *ours.state_tensors()), strict=True))


def test_8_bit_moments_are_those_of_torchao_s_adamw() -> None:
    pytest.importorskip("torchao")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.optim.adam import single_param_adam
        from torchao.optim.subclass_8bit import OptimState8bit
    (mine,) = weights((64, 128))
    theirs = mine.clone()
    ours = optimizer("optimizer=adamw optimizer.weight_decay=0.01", [mine], "int8", Storage([None]))
    first, second = (OptimState8bit.zeros(mine.shape, s) for s in (True, False))
    for i in range(3):
        (grad,) = slopes([mine], i)
        ours.step([grad], LR, ONE, NONE)
        single_param_adam(
            theirs, grad, torch.tensor(i + 1.0), first, second, None, LR, 0.9, 0.999, 0.01, 1e-8, True, False
        )
    codes = ours.state_dict()["moments"]
    # the two kernels order their products differently: a code may be a neighbour, a weight some roundings off
    assert (codes[0][0].view(64, 128).int() - first.codes.int()).abs().max() <= 1
    assert (codes[1][0].view(64, 128).int() - second.codes.int()).abs().max() <= 1
    assert ((codes[0][0].view(64, 128) != first.codes).float().mean()) < 1e-3
    assert ((mine - theirs).abs() > 1e-6).float().mean() < 1e-3


def test_8_bit_moments_take_a_quarter_of_the_bytes_and_small_tensors_keep_float32() -> None:
    pytest.importorskip("torchao")
    params = weights((64, 128), (100,))
    state = optimizer("optimizer=adamw", params, "int8", Storage([None, None])).state_tensors()
    held = sum(t.numel() * t.element_size() for t in state)
    assert held == 2 * (8192 + 8192 // 256 * 4) + 2 * 100 * 4 + 4


def test_a_trace_with_tensors_that_hold_nothing_leaves_no_trace_in_8_bit_codes() -> None:
    pytest.importorskip("torchao")
    _eight_bit._map.cache_clear()
    with FakeTensorMode():
        _eight_bit.coded(True, torch.device("cpu"))
    held = _eight_bit.EightBit(256, _eight_bit.coded(True, torch.device("cpu")))
    held.write(torch.linspace(-1, 1, 256), NONE)
    assert (held.read() - torch.linspace(-1, 1, 256)).abs().max() <= 2**-6


def test_bfloat16_moments_follow_a_decay_that_rounding_to_nearest_would_lose() -> None:
    torch.manual_seed(0)
    params = [torch.zeros(4096)]
    ours = optimizer("optimizer=adamw optimizer.weight_decay=0", params, "bfloat16", Storage([None]))
    ours.step([torch.ones(4096)], LR, ONE, NONE)
    for _ in range(500):
        ours.step([torch.zeros(4096)], LR, ONE, NONE)
    second = ours.state_dict()["moments"][1][0].double().mean().item()
    wanted = 1e-3 * 0.999**500
    assert abs(second / wanted - 1) < 0.02
    assert ours.state_dict()["moments"][1][0].dtype == torch.bfloat16


SPLIT = ("precision=bf16_split", "optimizer=adamw", "trainer.clip_norm=1")
MASTERS = ("precision=bf16_true", "precision.master=float32", "precision.moment=float32", *SPLIT[1:])


def trained(kit: Kit, first: int, count: int) -> list[Tensor]:
    return [kit.step([batch(first + i)]).loss_sum.clone() for i in range(count)]


def test_split_masters_are_float32_masters_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(self: MasterCopies) -> None:
        for weight, master in zip(self._working, self._copies, strict=True):
            weight.data.copy_(split_float32(master)[0])

    monkeypatch.setattr(MasterCopies, "publish", publish)  # ties go away from zero there too
    split, whole = Kit(*SPLIT), Kit(*MASTERS)
    assert all(torch.equal(a, b) for a, b in zip(trained(split, 0, 20), trained(whole, 0, 20), strict=True))
    for mine, theirs in zip(split.policy.held.full(), whole.policy.masters, strict=True):
        assert torch.equal(mine, theirs)
    assert split.policy.weights[0].dtype == torch.bfloat16


def test_split_masters_have_14_bytes_a_weight_with_adamw_gradient_included() -> None:
    kit = Kit(*SPLIT, model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4, bias=False)))
    kit.step([batch(0)])
    (weight,) = kit.policy.weights
    state = [t for t in kit.optimizer.state_tensors() if t.dim()]
    assert weight.grad is not None
    held = [*kit.policy.held.stored(), weight.grad, *state]
    assert sum(t.numel() * t.element_size() for t in held) == 14 * weight.numel()


def test_float32_evaluation_and_another_run_take_split_masters_whole() -> None:
    kit = Kit(*SPLIT)
    trained(kit, 0, 5)
    full = [t.clone() for t in kit.policy.held.full()]
    with kit.policy.evaluate("fp32"):
        assert all(torch.equal(w, f) for w, f in zip(kit.policy.weights, full, strict=True))
    assert kit.policy.weights[0].dtype == torch.bfloat16
    other = Kit(*MASTERS)
    other.policy.load_weights({**kit.model.state_dict(), **kit.policy.state_dict()["masters"]})
    assert all(torch.equal(m, f) for m, f in zip(other.policy.masters, full, strict=True))
    back = Kit(*SPLIT)
    back.policy.load_weights({**other.model.state_dict(), **other.policy.state_dict()["masters"]})
    assert all(torch.equal(m, f) for m, f in zip(back.policy.held.full(), full, strict=True))


def test_an_average_follows_the_whole_masters_and_gives_them_back() -> None:
    kit = Kit(*SPLIT, "trainer.ema_decay=0.9")
    trained(kit, 0, 5)
    assert kit.ema is not None
    before = [t.clone() for t in kit.policy.held.stored()]
    with kit.ema.in_place_of_weights():
        averages = zip(kit.policy.held.full(), kit.ema.average, strict=False)
        assert all(torch.equal(w.float(), a) for w, a in averages)
    assert all(torch.equal(a, b) for a, b in zip(before, kit.policy.held.stored(), strict=True))


@pytest.mark.parametrize(
    "words",
    [
        SPLIT,
        ("precision=bf16_true", "precision.update_rounding=stochastic"),
        ("precision=bf16_true", "precision.update_rounding=stochastic", "precision.moment=float32"),
        ("precision=bf16", "precision.moment=bfloat16"),
        ("precision=fp16", "precision.moment=bfloat16"),
        ("precision=bf16", "precision.moment=int8"),
    ],
)
def test_a_run_goes_on_bit_by_bit_from_its_state(words: tuple[str, ...]) -> None:
    if "precision.moment=int8" in words:
        pytest.importorskip("torchao")
    kit = Kit(*words)
    first = trained(kit, 0, 6)
    assert kit.optimizer.reads_device is False
    kept = [kit.model.state_dict(), kit.policy.state_dict(), kit.optimizer.state_dict(), kit.scaler.state_dict()]
    saved, draws = copy.deepcopy(kept), torch.get_rng_state()
    wanted = trained(kit, 6, 4)
    other = Kit(*words)
    trained(other, 50, 2)
    other.rates.start_at(6)
    other.policy.load_weights({**saved[0], **saved[1].get("masters", {})})
    other.optimizer.load_state_dict(saved[2])
    other.scaler.load_state_dict(saved[3])
    torch.set_rng_state(draws)
    assert all(torch.equal(a, b) for a, b in zip(trained(other, 6, 4), wanted, strict=True))
    assert torch.stack(first).isfinite().all()


@pytest.mark.parametrize(("rounding", "moves"), [("nearest", False), ("stochastic", True)])
def test_small_updates_are_lost_to_nearest_and_kept_on_average_by_stochastic_rounding(
    rounding: str, moves: bool
) -> None:
    torch.manual_seed(0)
    weight = torch.ones(20_000, dtype=torch.bfloat16)
    storage = Storage([None], stochastic=rounding == "stochastic")
    ours = optimizer("optimizer=sgd optimizer.momentum=0", [weight], "float32", storage)
    for _ in range(8):
        ours.step([torch.ones_like(weight)], torch.tensor(1e-4), ONE, NONE)
    change = 1 - weight.double().mean().item()
    assert abs(change - (8e-4 if moves else 0)) < 1e-4
