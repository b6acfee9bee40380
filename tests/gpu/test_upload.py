"""Batches that are copied beside the steps are whole when a step reads them, and no step waits for the host."""

from __future__ import annotations

import pytest
import torch

from mpt.data._upload import Upload
from tests.gpu._gpu_kit import host_wait_is_allowed, host_wait_is_error

BATCHES, NUMBERS, ROUNDS = 20, 1 << 20, 30


@pytest.mark.cuda_only
def test_a_step_never_reads_a_batch_before_it_has_arrived() -> None:
    upload = Upload("cuda")
    batches = [torch.full((NUMBERS,), float(i)).pin_memory() for i in range(BATCHES)]
    busy = torch.randn(2048, 2048, device="cuda")
    sums = []
    host_wait_is_error()
    try:
        for batch in batches:
            (moved,) = upload(batch)
            for _ in range(ROUNDS):  # so that the next batch arrives while the device has work before this one's sum
                busy = (busy @ busy).clamp_(-1, 1)
            sums.append(moved.sum(dtype=torch.float64))
            del moved
    finally:
        host_wait_is_allowed()
    assert torch.stack(sums).tolist() == [float(i) * NUMBERS for i in range(BATCHES)]


def test_without_a_gpu_tensors_stay_where_they_are() -> None:
    inputs, targets = torch.randn(4, 3), torch.arange(4)
    first, second = Upload("cpu")(inputs, targets)
    assert first is inputs
    assert second is targets
