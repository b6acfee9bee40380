"""CUDA graphs replay what the compiled model does without them."""

from __future__ import annotations

import pytest

from tests.gpu._gpu_kit import CNN, DEVICE, GPT, Kit


@pytest.mark.skipif(DEVICE == "cpu", reason="only CUDA has graphs of kernels")
@pytest.mark.parametrize("net", [CNN, GPT], ids=["small_cnn", "gpt"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_steps_in_graphs_have_the_losses_skips_and_scales_of_compiled_steps(
    net: tuple[str, ...], precision: str
) -> None:
    """Equal kernels on equal inputs; float atomics of some backward kernels leave 1e-3 of freedom over 12 steps."""
    told = []
    for graphs in ("false", "true"):
        kit = Kit(*net, f"precision={precision}", "trainer.compile=true", f"trainer.cuda_graphs={graphs}")
        attempts = [kit.step() for _ in range(12)]
        told.append([(a.loss_sum.item(), a.found.item(), a.scale.item()) for a in attempts])
    plain, replayed = told
    for (loss, found, scale), (other, also_found, also_scale) in zip(plain, replayed, strict=True):
        assert other == pytest.approx(loss, rel=1e-3)
        assert (also_found, also_scale) == (found, scale)
