"""A save from the GPU holds the values of its moment, takes no device memory, and is loaded where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mpt.checkpoint import CheckpointStore, Saver, load


@pytest.mark.cuda_only
@pytest.mark.parametrize("background", [True, False])
def test_a_save_from_the_gpu_is_of_its_moment_and_lies_on_the_cpu(background: bool, tmp_path: Path) -> None:
    weight = torch.arange(4_000_000, device="cuda", dtype=torch.float32).view(2000, 2000).t()
    state = {"w": weight, "tied": weight, "half": weight[0].half(), "n": 1}
    want = weight.cpu().clone()
    before = torch.cuda.memory_allocated()
    with Saver(CheckpointStore(tmp_path, keep=1), background=background) as saver:
        saver.save(state, step=1, update=1)
        weight.mul_(-1)  # queued behind the copy, in the same stream
        assert torch.cuda.memory_allocated() == before
    got = load(tmp_path)
    assert torch.equal(got["w"], want)
    assert got["w"].stride() == want.stride()
    assert got["w"].untyped_storage().data_ptr() == got["tied"].untyped_storage().data_ptr()
    plain = torch.load(next(tmp_path.glob("update-*/state.pt")))
    assert {t.device.type for t in plain.values() if isinstance(t, torch.Tensor)} == {"cpu"}


@pytest.mark.cuda_only
def test_a_save_beside_the_training_does_not_wait_for_the_gpu(tmp_path: Path) -> None:
    state = {"w": torch.randn(1000, 1000, device="cuda")}
    saver = Saver(CheckpointStore(tmp_path, keep=1), background=True)
    saver.save(state, step=1, update=1)  # page-locked memory is taken here, which may wait
    saver.wait()
    torch.cuda._sleep(500_000_000)
    saver.save(state, step=2, update=2)
    assert not torch.cuda.current_stream().query()
    saver.wait()
    assert torch.equal(load(tmp_path)["w"], state["w"].cpu())
