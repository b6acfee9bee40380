"""Activation checkpointing on the GPU: the same bits, less memory, no wait, and under graphs as without them."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from mpt.recompute import install
from mpt.rng import seed_all
from tests.contract.test_recompute import PATH
from tests.gpu._gpu_kit import DEVICE, GPT, POLICIES, Kit, host_wait_is_allowed, host_wait_is_error
from tests.unit.test_recompute import Called, Taking

ON = "trainer.checkpoint_activations=true"
BLOCKS = ("model=custom", PATH, "model.kwargs.width=16", "data=digits", "data.batch_size=16")
NETS = {"blocks": BLOCKS, "gpt": (*GPT, "model.dropout=0.1")}


def state_after(*words: str) -> list[Tensor]:
    kit = Kit(*words, "trainer.deterministic=true")
    losses = [kit.step().loss_sum for _ in range(4)]
    return [*losses, *kit.everything()]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("precision", POLICIES)
def test_steps_have_the_same_bits_as_without(net: str, precision: str) -> None:
    words = (*NETS[net], f"precision={precision}")
    for ours, plain in zip(state_after(*words, ON), state_after(*words), strict=True):
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("way", ["keyword", "tuple"])
def test_masks_are_drawn_again_as_they_were_wherever_the_input_stands(way: str) -> None:
    gradients = []
    for names in ([], ["inner"]):
        seed_all(0)
        model = Called(Taking(in_place=False), way).to(DEVICE)
        install(model, names)
        model(torch.ones(8, 4, device=DEVICE)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(a is not None and torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.cuda_only
def test_the_allocator_sees_less() -> None:
    peaks = []
    for on in ((), (ON,)):
        kit = Kit(*NETS["gpt"], "data.batch_size=64", *on)
        kit.step()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kit.step()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del kit
        gc.collect()
    assert peaks[1] < 0.8 * peaks[0]


@pytest.mark.cuda_only
@pytest.mark.parametrize("net", NETS)
def test_nothing_waits_for_the_gpu(net: str) -> None:
    kit = Kit(*NETS[net], "precision=fp16", ON)
    kit.step()
    batch = kit.batch()
    host_wait_is_error()
    try:
        kit.step(batch)
    finally:
        host_wait_is_allowed()


@pytest.mark.skipif(DEVICE == "cpu", reason="only CUDA has graphs of kernels")
@pytest.mark.parametrize("net", NETS)
def test_a_compiled_model_in_graphs_has_the_losses_of_one_without(net: str) -> None:
    losses = []
    for graphs in ("false", "true"):
        dropout = ("model.dropout=0",) if net == "gpt" else ()
        kit = Kit(*NETS[net], *dropout, ON, "trainer.compile=true", f"trainer.cuda_graphs={graphs}")
        losses.append([kit.step().loss_sum.item() for _ in range(6)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2 if net == "blocks" else 1e-3)
