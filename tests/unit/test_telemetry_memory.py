"""Memory: exact sums of tensors, and what a pass takes, against hand-worked sizes."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mpt.telemetry import memory as module
from mpt.telemetry.allocations import AllocationMeter
from mpt.telemetry.memory import MemoryMeter
from mpt.telemetry.storages import StorageMeter, distinct_bytes
from mpt.types import Unmeasured

KB = 1024


def test_shared_storages_count_once_in_the_first_group() -> None:
    weight = torch.zeros(KB)
    groups = {"a": [weight, weight.view(2, -1), weight[:3]], "b": [weight.detach(), torch.zeros(KB)], "c": []}
    assert distinct_bytes(groups) == {"a": 4 * KB, "b": 4 * KB, "c": 0}


def test_a_storage_counts_from_its_making_until_the_last_view_is_gone() -> None:
    before = torch.zeros(KB)
    with StorageMeter() as meter:
        a = before + 1
        assert meter.live_bytes == 4 * KB
        view = a[:2]
        del a
        assert meter.live_bytes == 4 * KB
        before.add_(1)
        before.view(2, -1)
        assert meter.live_bytes == 4 * KB
        b = before.double()
        del view, b
        assert meter.live_bytes == 0
    assert meter.peak_bytes == 4 * KB + 8 * KB


def test_blocks_are_followed_as_storages_are() -> None:
    before = torch.zeros(KB)
    with AllocationMeter() as blocks:
        a = before + 1
        with blocks.paused():
            unseen = torch.zeros(64 * KB)
        b = before.double()
        del a, b, unseen, before
    assert blocks.peak_bytes == 4 * KB + 8 * KB
    x, image = torch.randn(64, 64).t(), torch.randn(4, 8, 16, 16, requires_grad=True)
    weight = torch.randn(8, 8, 3, 3, requires_grad=True)
    with AllocationMeter() as blocks, StorageMeter() as storages:  # workspace: a sort's, and a convolution's
        y = x.sort(dim=0)
        torch.nn.functional.conv2d(image, weight).relu().sum().backward()
    assert blocks.peak_bytes == storages.peak_bytes > y.values.nbytes + y.indices.nbytes


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN, nn.LSTM])
def test_ops_made_of_other_ops_are_followed_as_storages_are(kind: type[nn.RNNBase]) -> None:
    net, x = kind(8, 16, batch_first=True), torch.randn(4, 8, 8)
    net(x)  # a kernel made at the first call takes memory then
    with AllocationMeter() as blocks, StorageMeter() as storages:
        net(x)[0].sum().backward()
    assert blocks.peak_bytes == storages.peak_bytes


def test_a_compiled_run_whose_steps_were_not_observed_has_no_peak_but_a_reason() -> None:
    meter = MemoryMeter("cpu", compiled=True)
    with meter.observed(torch.zeros(KB)):
        torch.zeros(KB)
    assert meter.memory({}).peak_bytes == Unmeasured("no compiled step was observed")
    for _ in range(2):
        meter.step([], lambda _: torch.zeros(2 * KB))
    assert meter.memory({}).peak_bytes == 4 * KB + 8 * KB


def test_activations_of_a_chain_are_what_the_backward_needs() -> None:
    # B batch, D width
    x_BD = torch.zeros(16, 64)
    meter = MemoryMeter("cpu")
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Sigmoid())
    params = sum(p.numel() for p in model.parameters()) * 4
    with meter.observed(x_BD):
        loss = model(x_BD).sum()
        meter.forward_done()
        loss.backward()
    # each sigmoid keeps its result; a linear layer keeps its input, which is such a result; and the loss itself
    assert meter.memory({}).activations_bytes == 2 * 16 * 64 * 4 + 4
    peak = meter.memory({"params": model.parameters(), "grads": [p.grad for p in model.parameters()]}).peak_bytes
    assert isinstance(peak, int)
    # both weights and both gradients at least; no more than the activations and two gradients of activations besides
    batch = 16 * 64 * 4
    assert 2 * params + batch <= peak <= 2 * params + 5 * batch + 64 * 64 * 4 + KB


def test_the_split_says_where_each_tensor_goes() -> None:
    model = nn.BatchNorm1d(KB)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, KB)).sum().backward()
    optimizer.step()
    moments = [t for s in optimizer.state.values() for t in s.values()]
    memory = MemoryMeter("cpu").memory(
        {
            "params": model.parameters(),
            "buffers": model.buffers(),
            "grads": [p.grad for p in model.parameters()],
            "optimizer": moments,
            "ema": [torch.zeros(KB)],
        }
    )
    assert memory.params_bytes == memory.grads_bytes == 2 * 4 * KB
    assert memory.buffers_bytes == 2 * 4 * KB + 8  # running mean and variance, and a counter
    assert memory.optimizer_bytes == 2 * 2 * 4 * KB + 2 * 4  # two moments, and AdamW's step for each parameter
    assert memory.ema_bytes == 4 * KB
    assert memory.data_bytes == 0


def test_a_group_that_is_not_known_is_a_mistake_of_the_programmer() -> None:
    with pytest.raises(AssertionError, match="wights"):
        MemoryMeter("cpu").memory({"wights": []})


def test_a_run_without_an_observed_pass_has_no_peak_but_a_reason() -> None:
    memory = MemoryMeter("cpu").memory({"params": [torch.zeros(KB)]})
    assert memory.peak_bytes == memory.activations_bytes == Unmeasured("no pass was observed")
    assert memory.params_bytes == 4 * KB


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_the_peak_of_resident_memory_sees_what_was_taken_and_given_back() -> None:
    meter = MemoryMeter("cpu")
    meter.start()
    before = meter.now_bytes()
    assert before is not None
    size = 64 * KB * KB
    with mmap.mmap(-1, size) as fresh:  # a tensor could get pages that an earlier test left to the allocator
        fresh[:] = bytes(size)
    peak = meter.memory({}).rss_peak_bytes
    assert isinstance(peak, int)
    assert peak >= before + size // 2


def test_a_system_without_proc_says_that_resident_memory_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(module, "_CLEAR", tmp_path / "no" / "such")
    meter = MemoryMeter("cpu")
    meter.start()
    assert meter.memory({}).rss_peak_bytes == Unmeasured("this system has no /proc/self/status")
